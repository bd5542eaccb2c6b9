"""The chat format of one model: converts messages to token ids, and answers to reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from speculant_graph.errors import ConfigError, GenerationError, GenerationRequestError
from speculant_graph.types import TokenId
from speculant_verifier.conversation.harmony import ChannelSplitter
from speculant_verifier.conversation.harmony_prompt import INSTRUCTING, HarmonyPrompt
from speculant_verifier.conversation.harmony_tokens import START, HarmonyTokens
from speculant_verifier.conversation.json_calls import JsonCalls
from speculant_verifier.conversation.plain_text import PlainText
from speculant_verifier.conversation.template_prompt import Message, TemplatePrompt
from speculant_verifier.conversation.tool_calls import HARMONY, CallStyle, Splitter, style_of

_DEFAULT, _WITH_TOOLS = "default", "tool_use"
"""Names under which a tokenizer may have chat templates, in transformers' order."""


class ChatFormat:
    """The chat format of one model, derived from its tokenizer. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Derive the chat format from a tokenizer and its chat templates.

        Raises:
            ConfigError: there are several templates, but none for chats without tools.
        """
        self._tokenizer = tokenizer
        templates = _templates_of(tokenizer)
        self._template = TemplatePrompt(tokenizer, "".join(templates.values()))
        self.harmony = self._harmony_tokens(is_templated=bool(templates))
        """Control tokens of a model that writes in the harmony format; None for other models."""
        self._prompt: HarmonyPrompt | None = None
        self.takes_effort = any("reasoning_effort" in template for template in templates.values())
        """Whether the chat format has a place for the reasoning effort in its prompts."""
        self.style: CallStyle | None = style_of(templates.get(_WITH_TOOLS, templates.get(_DEFAULT, "")))
        """The style in which the model writes tool calls; None if the style is unknown, or if the model calls no
        tools."""
        if self.harmony is not None:
            self._prompt = HarmonyPrompt(self.harmony, PlainText(tokenizer).encode)
            self.takes_effort, self.style = True, HARMONY

    @property
    def stop_token_ids(self) -> frozenset[TokenId]:
        """Tokens that end an answer, in addition to the checkpoint's end tokens."""
        return frozenset() if self.harmony is None else self.harmony.stops

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> list[TokenId]:
        """Return the token ids of a conversation, as a prompt for the model's answer.

        Message texts that spell control tokens stay text; only the frame around messages has control tokens.

        Args:
            messages: messages of the conversation, oldest first, such as ``{"role": "user", "content": "Hello"}``.
            tools: the available tools, as in OpenAI's chats.
            options: options of the template, such as ``reasoning_effort``; ``add_generation_prompt=False`` omits the
                beginning of an answer, and ``chat_template`` replaces the model's own format.

        Raises:
            GenerationError: there is no template, or it refuses the messages.
        """
        is_list = isinstance(messages, Sequence) and bool(messages)
        if not is_list or not all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in messages):
            raise GenerationRequestError(
                'messages must be a list such as [{"role": "user", "content": "Hello"}]; give one'
            )
        if not isinstance(tools or (), list | tuple) or not all(isinstance(tool, Mapping) for tool in tools or ()):
            raise GenerationRequestError(
                'tools must be a list such as [{"type": "function", "function": {"name": "f"}}]; give one'
            )
        prompt = self._template if self._prompt is None or options.get("chat_template") else self._prompt
        try:
            return prompt.render(messages, tools or (), options)
        except UnicodeEncodeError as error:
            raise GenerationRequestError(f"a message is not valid text ({error.reason}); give UTF-8") from error

    def shared_length(
        self,
        prompt: Sequence[TokenId],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> int:
        """Return the length of the prefix that a prompt shares with all prompts with the same instructions and tools.

        Args:
            prompt: the result of :meth:`render` for the same messages, tools and options.
            messages: the messages of the prompt.
            tools: the tools of the prompt.
            options: the options of the prompt.

        Raises:
            GenerationError: the template refuses a conversation that consists of the instructions and one user message.
        """
        head = list(takewhile(lambda message: message.get("role") in INSTRUCTING, messages))
        if not head and not tools:
            return 0
        shared = len(prompt)
        for content in ("1", "A"):  # two, because the prompt's message may begin like one
            other = self.render([*head, {"role": "user", "content": content}], tools, **options)
            pairs = zip(prompt[:shared], other, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return shared

    def parser(self, tool_names: Collection[str] | None = None) -> Splitter | None:
        """Return a splitter for the parts of one answer; None if the whole answer is content.

        Args:
            tool_names: the tools that the answer may call; None if it may call no tools.
        """
        if self.harmony is not None:
            return ChannelSplitter(self.harmony, self._decode, tool_names)
        if tool_names is None or self.style is None:
            return None
        return JsonCalls(self.style.mark, self.style.end)

    def _decode(self, token_ids: Sequence[TokenId]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _harmony_tokens(self, *, is_templated: bool) -> HarmonyTokens | None:
        """Return harmony's control tokens, unless the tokenizer lacks them or its chat template has another format."""
        tokens = HarmonyTokens.find(self._tokenizer)
        if tokens is None or not is_templated:
            return tokens
        try:
            prompt = self._template.render([{"role": "user", "content": "Hello"}], (), {})
        except GenerationError:
            return None
        opening = [tokens.ids[START], *self._tokenizer.encode("assistant", add_special_tokens=False)]
        return tokens if prompt[-len(opening) :] == opening else None


def _templates_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return a tokenizer's chat templates by name.

    Raises:
        ConfigError: there are several templates, but none for chats without tools.
    """
    given = tokenizer.chat_template
    if not given:
        return {}
    templates = dict(given) if isinstance(given, Mapping) else {_DEFAULT: str(given)}
    if _DEFAULT not in templates:
        names = ", ".join(sorted(templates))
        raise ConfigError(
            f"the tokenizer has chat templates for {names}, but no 'default'", fix="add one to the model's folder"
        )
    return templates
