"""Converts messages to token ids with the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from speculant_graph.errors import GenerationRequestError
from speculant_graph.serving.json_body import read_model_json
from speculant_graph.types import TokenId
from speculant_verifier.conversation.plain_text import PlainText

Message = Mapping[str, Any]
"""One message: 'role', 'content', and any other fields that the template uses."""
_OF_MODEL = ("content", "reasoning_content", "thinking", "reasoning")
"""Fields of an assistant message that contain text written by the model."""


class TemplatePrompt:
    """Renders conversations with a tokenizer's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str) -> None:
        """Store the tokenizer; ``template`` is the joined text of all its chat templates."""
        self._tokenizer = tokenizer
        self._text = PlainText(tokenizer, template)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[TokenId]:
        """Return the token ids of a conversation, including the template's control tokens.

        If a text in a message, tool or option spells a control token, it stays text.

        Args:
            messages: messages of the conversation, oldest first.
            tools: the available tools.
            options: options of the template; ``chat_template`` replaces the tokenizer's own.

        Raises:
            GenerationRequestError: there is no template, or it refuses the messages.
        """
        if not (options.get("chat_template") or self._tokenizer.chat_template):
            raise GenerationRequestError(
                "the tokenizer has no chat template; give the prompt as text, or choose a chat model"
            )
        own = {name: value for name, value in options.items() if name != "chat_template"}
        given = {name: value for name, value in options.items() if name == "chat_template"}
        if tools:
            given["tools"] = self._text.broken(list(tools))
        try:
            text: Any = self._tokenizer.apply_chat_template(
                [self._message(message) for message in messages],
                **{"add_generation_prompt": True} | self._text.broken(own) | given | {"tokenize": False},
            )
        except Exception as error:  # a template is a program and may raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise GenerationRequestError(
                f"the chat template refuses the messages: {self._text.whole(reason)}; "
                "change their roles, contents or the options"
            ) from error
        return self._text.encode_broken(str(text))

    def _message(self, message: Message) -> dict[str, Any]:
        is_own = message["role"] == "assistant"
        fields = {
            name: self._text.broken(value, is_own=is_own and name in _OF_MODEL) for name, value in message.items()
        }
        if isinstance(calls := message.get("tool_calls"), Sequence):
            fields["tool_calls"] = self._text.broken([_with_arguments(call) for call in calls])
        return fields


def _with_arguments(call: Any) -> Any:
    """Return a tool call in the format that chat templates expect, with its arguments parsed from JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": read_model_json(function["arguments"])}}
