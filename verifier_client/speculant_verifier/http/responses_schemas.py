"""Request objects of the Responses API; :mod:`speculant_verifier.http.schemas` describes the rule for null fields."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from speculant_verifier.http.fields import Schema, record_ignored, require_fields, text_or_list
from speculant_verifier.http.schemas import (
    AnyRequest,
    Content,
    NumTokens,
    NumTop,
    ReasoningEffort,
    TemplateOptions,
    Word,
)
from speculant_verifier.http.tool_schemas import MAX_TOOLS, FlatTool, Name, ToolChoice

WANTS_SEAL = "reasoning.encrypted_content"
WANTS_LOGPROBS = "message.output_text.logprobs"
_ROLES = ("user", "assistant", "system", "developer")


class Item(Schema):
    """One item of a conversation: a message, a tool call, the output of a tool call, or reasoning.

    Clients may also send items of other types, which come from other servers. An item of another type is converted to
    the nearest supported type, or left out.
    """

    type: Word = "message"
    """Type of the item, such as 'message' or 'function_call'."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    """Role of a message's author."""
    content: Content | None = None
    """Content of a message, or text of reasoning; the texts of parts are joined by line feeds. Reasoning has an effect
    only if the model's chat template uses it."""
    summary: Content | None = None
    """Summary of reasoning, used if the item has no content."""
    encrypted_content: str | None = None
    """Reasoning that this server sealed earlier; used instead of content and summary."""
    call_id: Name | None = None
    """Id of a tool call; the call and its output have the same id."""
    name: Name | None = None
    """Name of the called function; for an output of an unknown type, the name of that type."""
    namespace: Name | None = None
    """Namespace of the called function."""
    arguments: str | None = None
    """Arguments of a call, as JSON text."""
    input: str | None = None
    """Input text of a custom tool's call."""
    output: Content | None = None
    """Result of a tool call."""
    id: str | None = None
    """Id of the item; for type 'item_reference', the id of an item of an earlier response."""
    status: str | None = None
    """Stored unchanged."""

    @model_validator(mode="before")
    @classmethod
    def _of_known_type(cls, values: Any) -> Any:
        return as_known_item(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, KNOWN_ITEMS.get(self.type, ()))
        return self


KNOWN_ITEMS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
    "item_reference": ("id",),
}
"""Maps every supported type of item to its required fields."""
_MARKS = ("type", "id", "call_id", "status")


def as_known_item(values: dict[str, Any]) -> dict[str, Any]:
    """Convert an item of an unsupported type to a call, an output or a message, if possible.

    If the item can't be converted, return only its type, so that the item is ignored.
    """
    kind = values.get("type")
    if kind is None and values.get("role") is None and isinstance(values.get("id"), str):
        return values | {"type": "item_reference"}
    if not isinstance(kind, str) or kind in KNOWN_ITEMS:
        return values
    call_id = values.get("call_id") or values.get("id")
    rest = {name: value for name, value in values.items() if name not in _MARKS and value is not None}
    if kind.endswith("_call_output") and isinstance(call_id, str):
        output = values.get("output", rest)
        is_content = isinstance(output, str) or (
            isinstance(output, list)
            and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in output)
        )
        output = output if is_content else _json(output)
        return {"type": "function_call_output", "call_id": call_id, "name": kind, "output": output}
    if kind.endswith("_call") and isinstance(values.get("call_id"), str):
        name = rest.pop("name", kind.removesuffix("_call"))
        arguments = rest.get("arguments", rest.get("action", rest))
        arguments = arguments if isinstance(arguments, str) else _json(arguments)
        return {"type": "function_call", "call_id": values["call_id"], "name": name, "arguments": arguments}
    if values.get("role") in _ROLES and values.get("content") is not None:
        return {"type": "message", "role": values["role"], "content": values["content"]}
    record_ignored(f"item {kind}")
    return {"type": kind}


def _json(value: Any) -> str:
    """Return a tool's arguments or output as JSON text, without images, whose data would exceed any context."""
    if isinstance(value, dict):
        value = {name: each for name, each in value.items() if not (isinstance(each, str) and each[:5] == "data:")}
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "{}"


_AS_ITEMS = text_or_list(lambda text: [{"role": "user", "content": text}])
_Items = Annotated[list[Item], Field(fail_fast=True)]


class TextFormat(Schema):
    """Format that the answer's text must have."""

    type: Literal["text", "json_object", "json_schema"]
    """Whether the answer is any text, a JSON object, or JSON that matches a schema."""
    name: Word | None = None
    """For human readers."""
    description: str | None = None
    """For human readers."""
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    """The schema."""
    strict: bool | None = None
    """Whether JSON must have the whitespace that Python's json module writes, so that more tokens are forced. The
    schema is enforced even if this field is false."""


class TextOptions(Schema):
    """Options for the text of the answer, namely its format."""

    format: TextFormat | None = None
    """Format that the answer's text must have."""


class ReasoningOptions(Schema):
    """Options of reasoning."""

    effort: ReasoningEffort | None = None
    """Reasoning effort, for models whose chat template supports it."""


def _known_of_include(names: list[str]) -> list[str]:
    for name in names:
        if name not in (WANTS_SEAL, WANTS_LOGPROBS):
            record_ignored(f"include {name}")
    return names


class ResponsesRequest(AnyRequest):
    """Request to continue a conversation that is given as items."""

    input: Annotated[_Items, BeforeValidator(_AS_ITEMS, json_schema_input_type=str | _Items)]
    """Text of the user, or the conversation's items from the first to the latest."""
    instructions: str | None = None
    """System message, placed at the start of the conversation."""
    previous_response_id: Name | None = None
    """Id of an earlier response, whose conversation precedes the input."""
    store: bool = True
    """Whether to keep this response in memory, so that later requests can continue it."""
    max_output_tokens: NumTokens | None = None
    """Maximum number of new tokens, reasoning included."""
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Tools that the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call a tool; an object names the tools that it may or must call."""
    parallel_tool_calls: bool = True
    """Whether an answer that must call a tool may make several calls."""
    text: TextOptions | None = None
    """Options for the text of the answer, namely its format."""
    reasoning: ReasoningOptions | None = None
    """Options of reasoning."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    """Returned unchanged."""
    top_logprobs: NumTop | None = None
    """Number of most probable tokens per position whose log-probabilities are returned. The log-probabilities of the
    answer's own text are also returned."""
    include: Annotated[list[str], AfterValidator(_known_of_include)] | None = None
    """Additional output: 'reasoning.encrypted_content' or 'message.output_text.logprobs'; other values are ignored."""
    truncation: Literal["auto", "disabled"] | None = None
    """'auto' leaves out the earliest items of a conversation that exceeds the model's context."""
    background: Literal[False] = False
    """Only false."""
    chat_template_kwargs: TemplateOptions | None = None
    """Values for variables of the model's chat template."""
