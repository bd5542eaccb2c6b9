"""Request objects of Anthropic's Messages API. A field with the value null counts as absent.

Blocks and tools of unsupported types are not refused, because many conversations contain them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from speculant_verifier.http.fields import NO_SHAPE, REFUSED, Schema, one_line_of_ignored, require_fields, text_or_list
from speculant_verifier.http.schemas import NumTokens, SpeculantRequest, TopP
from speculant_verifier.http.tool_schemas import Name


class Block(Schema):
    """A block of a message: text, thinking, a tool call, a tool result, or any other type."""

    type: Annotated[str, Field(min_length=1)]
    """Type of the block; a block of an unsupported type is reduced to its title and text, if it has any."""
    text: str | None = None
    """Text of a text block."""
    thinking: str | None = None
    """Text of a thinking block."""
    id: Name | None = None
    """Id of a tool call; the call's result refers to this id."""
    name: Name | None = None
    """Name of the called tool."""
    input: dict[str, Any] | None = None
    """Arguments of a tool call, as a JSON object."""
    tool_use_id: Name | None = None
    """For a tool result: id of the call that produced the result."""
    is_error: bool | None = None
    """For a tool result: whether the tool failed."""
    content: Any = None
    """For a tool result: its content, as text or blocks."""
    source: dict[str, Any] | str | None = None
    """Source of an image, a document or a search result."""
    title: str | None = None
    """Title of a document or a search result."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, _REQUIRED.get(self.type, ()))
        return self


_REQUIRED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
_AS_BLOCKS = text_or_list(lambda text: [{"type": "text", "text": text}])
_Blocks = Annotated[list[Block], Field(fail_fast=True)]
Blocks = Annotated[_Blocks, BeforeValidator(_AS_BLOCKS, json_schema_input_type=str | _Blocks)]
"""Content of a message: a text, or a list of blocks."""


class AnthropicMessage(Schema):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    """The author's role."""
    content: Blocks
    """The content."""


class AnthropicTool(Schema):
    """A tool that the model may call. Tools of other types, which Anthropic's servers run, are left out."""

    type: str | None = None
    """'custom', or absent."""
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")] | None = None
    """Name of the tool, which may contain letters, digits, '_', '-' and '.'."""
    description: str | None = None
    """Description of the tool, shown to the model."""
    input_schema: dict[str, Any] | None = None
    """JSON schema of the object with the tool's arguments."""


class ToolChoice(Schema):
    """Whether the model may, must or must not call a tool."""

    @model_validator(mode="before")
    @classmethod
    def _is_object(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            kinds = ", ".join(f'{{"type": "{kind}"}}' for kind in ("auto", "any", "none"))
            advice = f'give an object: {kinds}, or {{"type": "tool", "name": "NAME"}}'
            raise PydanticCustomError(NO_SHAPE, "{advice}", {"advice": advice})
        return values

    type: Literal["auto", "any", "tool", "none"]
    """Whether the model may call a tool ('auto'), must call any tool ('any') or the named tool ('tool'), or must not
    call a tool ('none')."""
    name: Name | None = None
    """Name of the tool that must be called, for type 'tool'."""
    disable_parallel_tool_use: bool | None = None
    """Whether an answer that must call a tool is limited to one call."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, ("name",) if self.type == "tool" else ())
        return self


class Thinking(Schema):
    """Whether the answer contains the model's reasoning."""

    type: Annotated[str, Field(min_length=1)]
    """'disabled' leaves reasoning out of the answer, and sets the reasoning effort to 'low' unless the request sets
    another effort."""


class OutputFormat(Schema):
    """Format of the answer's text: JSON that matches a schema."""

    type: Literal["json_schema"]
    """'json_schema'."""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    """The schema."""


class OutputConfig(Schema):
    """Options of the answer: reasoning effort and text format."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Reasoning effort, for models whose chat template supports it; 'xhigh' and 'max' mean 'high'."""
    format: OutputFormat | None = None
    """Format of the answer's text: JSON that matches a schema."""


class TokenCountRequest(Schema):
    """Request to count the tokens of a conversation's prompt."""

    model: str
    """Name of the model, as listed by /v1/models."""
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, fail_fast=True)]
    """Messages of the conversation, from the first to the latest."""
    system: Blocks | None = None
    """The system message."""
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True)] | None = None
    """Tools that the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call a tool."""
    thinking: Thinking | None = None
    """Whether the answer contains the model's reasoning."""
    output_config: OutputConfig | None = None
    """Options of the answer: reasoning effort and text format."""
    refused: ClassVar[frozenset[str]] = REFUSED | {"container", "mcp_servers"}

    @model_validator(mode="wrap")
    @classmethod
    def _with_one_line_of_ignored(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        with one_line_of_ignored():
            return handler(values)


class MessagesRequest(SpeculantRequest, TokenCountRequest):
    """Request to continue a conversation."""

    max_tokens: NumTokens
    """Maximum number of new tokens, reasoning included."""
    stream: bool | None = None
    """Whether to stream the answer as server-sent events."""
    stop_sequences: Annotated[list[str], Field(max_length=16, fail_fast=True)] | None = None
    """Stop texts; the answer ends before the first stop text that occurs."""
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    """Sampling temperature; 0 always takes the most probable token."""
    top_p: TopP | None = None
    """Sample only from the most probable tokens with this total probability; 0 keeps only the most probable token."""
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Number of most probable tokens to sample from; 0 keeps all tokens."""
