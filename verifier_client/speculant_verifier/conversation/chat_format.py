"""How one model converses: messages to token ids, and its answers to thoughts, content and calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from speculant_graph.errors import GenerationError
from speculant_graph.types import TokenId
from speculant_verifier.conversation.harmony import ChannelSplitter
from speculant_verifier.conversation.harmony_tokens import START, HarmonyTokens
from speculant_verifier.conversation.json_calls import JsonCalls
from speculant_verifier.conversation.template_prompt import Message, chat_tokens
from speculant_verifier.conversation.tool_calls import CallStyle, Splitter, style_of

_INSTRUCTING = ("system", "developer")


class ChatFormat:
    """The format of one model's conversations, known by its tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Look at a tokenizer and its chat template."""
        self._tokenizer = tokenizer
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        self.takes_effort = "reasoning_effort" in template
        """Whether prompts tell how long to think."""
        self.style: CallStyle | None = style_of(template)
        """How the model writes calls of tools; None if that is not known, or if it calls none."""
        self.harmony = self._harmony_tokens()
        """Control tokens of a model that writes in harmony's channels; None for others."""

    @property
    def stop_token_ids(self) -> frozenset[TokenId]:
        """Tokens that end an answer, whatever the checkpoint declares."""
        return frozenset() if self.harmony is None else self.harmony.stops

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> list[TokenId]:
        """Return the token ids of a conversation, ready for the model's answer.

        Args:
            messages: from the first to the latest, such as ``{"role": "user", "content": "Hello"}``.
            tools: what the model may call, as in OpenAI's chats.
            options: for the template, such as ``reasoning_effort``; ``add_generation_prompt=False`` ends without the
                beginning of an answer.

        Raises:
            GenerationError: there is no template, or it refuses the messages.
        """
        return chat_tokens(self._tokenizer, messages, **({"tools": list(tools)} if tools else {}), **options)

    def shared_length(
        self,
        prompt: Sequence[TokenId],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> int:
        """Return how many tokens a prompt shares with other conversations of the same instructions and tools.

        Args:
            prompt: as :meth:`render` returned it for the other arguments.
            messages: the messages of the prompt.
            tools: its tools.
            options: its options.

        Raises:
            GenerationError: the template refuses messages that end after the instructions.
        """
        head = list(takewhile(lambda message: message.get("role") in _INSTRUCTING, messages))
        if not head and not tools:
            return 0
        other = self.render([*head, {"role": "user", "content": ""}], tools, **options)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other, strict=False)))

    def parser(self, tool_names: Collection[str] | None = None) -> Splitter | None:
        """Return what splits one answer; None if all of it is content.

        Args:
            tool_names: the tools that the answer may call; None if there are none.
        """
        if self.harmony is not None:
            return ChannelSplitter(self.harmony, self._decode, finds_calls=tool_names is not None)
        if tool_names is None or self.style is None:
            return None
        return JsonCalls(self.style.mark, self.style.end)

    def _decode(self, token_ids: Sequence[TokenId]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _harmony_tokens(self) -> HarmonyTokens | None:
        tokens = HarmonyTokens.find(self._tokenizer)
        if tokens is None:
            return None
        try:
            prompt = self.render([{"role": "user", "content": "Hello"}])
        except GenerationError:
            return None
        opening = [tokens.ids[START], *self._tokenizer.encode("assistant", add_special_tokens=False)]
        return tokens if prompt[-len(opening) :] == opening else None
