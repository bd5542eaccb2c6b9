"""What clients of the Responses API send, under the rules of :mod:`speculant_verifier.http.schemas`."""

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
    """One item of a conversation: a message, a call that the model made, what it returned, or thoughts.

    Items of other types become the nearest of these, or are left out: clients keep them from other servers.
    """

    type: Word = "message"
    """Which of these; without it, a message."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    """Of a message: its author's role."""
    content: Content | None = None
    """Of a message: its content; the texts of parts are joined by line feeds. Of thoughts, which models whose chat
    template wants them get back: what is thought."""
    summary: Content | None = None
    """Of thoughts: used if there is no content."""
    encrypted_content: str | None = None
    """Of thoughts: what this server has sealed before; used first."""
    call_id: Name | None = None
    """Of a call and its output: what joins them."""
    name: Name | None = None
    """Of a call: the function. Of an output of another type: that type."""
    namespace: Name | None = None
    """Of a call: the namespace of the function."""
    arguments: str | None = None
    """Of a call: JSON text."""
    input: str | None = None
    """Of a call of a custom tool: text."""
    output: Content | None = None
    """Of a call's output: what it returned."""
    id: str | None = None
    """Its own; of an 'item_reference': which item of an earlier response stands here."""
    status: str | None = None
    """Kept as it is."""

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
"""Types of items that stand for something, and what each must have."""
_MARKS = ("type", "id", "call_id", "status")


def as_known_item(values: dict[str, Any]) -> dict[str, Any]:
    """Return an item as one of the known types, if it can be: calls of tools, what they returned, and messages.

    Others keep their type, which stands for nothing, and nothing else.
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
    """Return what a tool returned as text, without the pictures in it, which are longer than any context."""
    if isinstance(value, dict):
        value = {name: each for name, each in value.items() if not (isinstance(each, str) and each[:5] == "data:")}
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "{}"


_AS_ITEMS = text_or_list(lambda text: [{"role": "user", "content": text}])
_Items = Annotated[list[Item], Field(fail_fast=True)]


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


class ReasoningOptions(Schema):
    """How the model thinks."""

    effort: ReasoningEffort | None = None
    """How long, for models whose chat template takes it."""


def _known_of_include(names: list[str]) -> list[str]:
    for name in names:
        if name not in (WANTS_SEAL, WANTS_LOGPROBS):
            record_ignored(f"include {name}")
    return names


class ResponsesRequest(AnyRequest):
    """A conversation to continue, item by item."""

    input: Annotated[_Items, BeforeValidator(_AS_ITEMS, json_schema_input_type=str | _Items)]
    """A text of the user, or items from the first to the latest."""
    instructions: str | None = None
    """The system message, before everything else."""
    previous_response_id: Name | None = None
    """The response that this one continues: its conversation comes before the input."""
    store: bool = True
    """Keep this response in memory, so that later ones can go on from it."""
    max_output_tokens: NumTokens | None = None
    """Most new tokens, thoughts included."""
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """What the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether it may not, may, or must, or which one it must, or which ones it may call."""
    parallel_tool_calls: bool = True
    """Whether an answer that must call may call several."""
    text: TextOptions | None = None
    """How the answer's text is written."""
    reasoning: ReasoningOptions | None = None
    """How the model thinks."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    """Returned as it is."""
    top_logprobs: NumTop | None = None
    """Return the log-probability of every token of its text, and those of so many most probable ones."""
    include: Annotated[list[str], AfterValidator(_known_of_include)] | None = None
    """'reasoning.encrypted_content' and 'message.output_text.logprobs'; others mean nothing here."""
    truncation: Literal["auto", "disabled"] | None = None
    """'auto': of a conversation that is too long for the model the earliest items are left out."""
    background: Literal[False] = False
    """false only."""
    chat_template_kwargs: TemplateOptions | None = None
    """Variables of the model's chat template."""
