"""What clients of the Responses API send. Unknown fields are refused, and null is as if a field were not there."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from speculant_verifier.http.schemas import (
    MAX_TOOLS,
    AnyRequest,
    Function,
    Name,
    NamedFunction,
    NumTokens,
    ReasoningEffort,
    Schema,
    Word,
)


class ContentPart(Schema):
    """A piece of a message."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    """Text of either side; images, files and sound are not served."""
    text: str
    """The text."""
    annotations: list[Any] | None = None
    """Ignored."""
    logprobs: list[Any] | None = None
    """Ignored."""


Content = str | Annotated[list[ContentPart], Field(fail_fast=True)]
"""Text, whole or in parts."""


class Item(Schema):
    """One item of a conversation: a message, a call that the model made, what it returned, or thoughts."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    """Which of these; without it, a message."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    """Of a message: its author's role."""
    content: Content | None = None
    """Of a message: its content; the texts of parts are joined by line feeds. Of thoughts, which models whose chat
    template wants them get back: what is thought."""
    summary: Content | None = None
    """Of thoughts: used if there is no content."""
    call_id: Name | None = None
    """Of a call and its output: what joins them."""
    name: Name | None = None
    """Of a call: the function."""
    arguments: str | None = None
    """Of a call: JSON text."""
    output: Content | None = None
    """Of a call's output: what it returned."""
    id: str | None = None
    """Ignored."""
    status: str | None = None
    """Ignored."""
    phase: str | None = None
    """Ignored."""
    encrypted_content: str | None = None
    """Ignored: nothing is encrypted here."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        missing = [name for name in _REQUIRED[self.type] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"lacks {missing[0]}")
        return self


_REQUIRED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


def _as_items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


_Items = Annotated[list[Item], Field(min_length=1, fail_fast=True)]


class FunctionTool(Function):
    """A function that the model may call; tools that a server runs itself are not served."""

    type: Literal["function"]
    """'function'."""


class ChosenFunction(NamedFunction):
    """The function that must be called."""

    type: Literal["function"]
    """'function'."""


class TextFormat(Schema):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    """Any text, a JSON object, or JSON of a schema."""
    name: Word | None = None
    """For people."""
    description: str | None = None
    """For people."""
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    """The schema."""
    strict: bool | None = None
    """Spaces are where Python's json puts them, so that more is known before. A schema is always kept to."""


class TextOptions(Schema):
    """How the answer's text is written."""

    format: TextFormat | None = None
    """Its form."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Ignored."""


class ReasoningOptions(Schema):
    """How the model thinks."""

    effort: ReasoningEffort | None = None
    """How long, for models whose chat template takes it."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Ignored: thoughts are returned as they are, not summed up."""


class StreamOptions(Schema):
    """What a stream holds besides events."""

    include_obfuscation: bool = False
    """Ignored: nothing is added."""


class ResponsesRequest(AnyRequest):
    """A conversation to continue, item by item."""

    input: Annotated[_Items, BeforeValidator(_as_items, json_schema_input_type=str | _Items)]
    """A text of the user, or items from the first to the latest."""
    instructions: str | None = None
    """The system message, before everything else."""
    previous_response_id: Name | None = None
    """A response that this one goes on from: what it was about comes before the input."""
    store: bool = True
    """Keep this response in memory, so that later ones can go on from it."""
    stream_options: StreamOptions | None = None
    """What a stream holds besides events."""
    max_output_tokens: NumTokens | None = None
    """Most new tokens, thoughts included."""
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """What the model may call."""
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    """Whether it may not, may, or must, or which one it must call."""
    parallel_tool_calls: bool = True
    """Whether an answer that must call may call several."""
    text: TextOptions | None = None
    """How the answer's text is written."""
    reasoning: ReasoningOptions | None = None
    """How the model thinks."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    """Returned as it is."""
    include: list[str] | None = None
    """Ignored: thoughts are always returned, and in the open."""
    truncation: Literal["disabled"] | None = None
    """'disabled': what is too long is refused."""
    service_tier: Literal["auto", "default"] | None = None
    """Ignored."""
    background: Literal[False] = False
    """false only."""
    prompt_cache_retention: str | None = None
    """Ignored: the prefix cache keeps what fits into it."""
    safety_identifier: str | None = None
    """Ignored."""
