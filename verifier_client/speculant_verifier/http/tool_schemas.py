"""Request objects for tools, tool choices and tool calls, in chat requests and Responses requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from speculant_verifier.http.fields import Schema, record_ignored, require_fields

MAX_TOOLS = 128
MAX_CALLS = 1024
Name = Annotated[str, Field(min_length=1, max_length=256)]
_Type = Annotated[str, Field(min_length=1, max_length=256)]
_ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]

RUN_HERE = ("function", "custom")
"""Types of the tools that clients run themselves. Tools that OpenAI's servers run are not supported and not shown to
the model."""


class Function(Schema):
    """A function that the model may call."""

    name: _ToolName
    """Name of the function, which may contain letters, digits, '_', '-' and '.'."""
    description: str | None = None
    """Description of the tool, shown to the model."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the object with the function's arguments."""
    strict: bool | None = None
    """Whether to refuse a schema that can't be enforced completely; used only if a grammar enforces the calls."""


class Grammar(Schema):
    """A grammar that a text must match."""

    syntax: Literal["lark", "regex"]
    """Syntax of the grammar: 'lark' in llguidance's variant, or 'regex' in Rust's variant."""
    definition: Annotated[str, Field(min_length=1)]
    """The grammar."""


class CustomFormat(Schema):
    """Format of a custom tool's input: any text, or text that matches a grammar.

    In chat requests, the grammar is a nested object.
    """

    type: Literal["text", "grammar"] = "text"
    """Whether the input is any text, or text that matches a grammar."""
    grammar: Grammar | None = None
    """In chat requests: the grammar that the input must match, for type 'grammar'."""
    syntax: Literal["lark", "regex"] | None = None
    """In Responses requests: syntax of the grammar, for type 'grammar'."""
    definition: Annotated[str, Field(min_length=1)] | None = None
    """In Responses requests: the grammar that the input must match, for type 'grammar'."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.type == "grammar" and self.given is None:
            raise ValueError("lacks a grammar: syntax and definition")
        return self

    @property
    def given(self) -> Grammar | None:
        """Grammar that the input must match; None if any text is allowed."""
        if self.type == "grammar" and self.syntax is not None and self.definition is not None:
            return Grammar(syntax=self.syntax, definition=self.definition)
        return self.grammar if self.type == "grammar" else None


class CustomTool(Schema):
    """A custom tool, whose input is text instead of a JSON object."""

    name: _ToolName
    """Name of the tool, which may contain letters, digits, '_', '-' and '.'."""
    description: str | None = None
    """Description of the tool, shown to the model."""
    format: CustomFormat | None = None
    """Format of the tool's input; if it is absent, any text is allowed."""


class Tool(Schema):
    """A tool that the model may call."""

    type: _Type
    """Type of the tool: 'function' or 'custom'; tools of other types are left out of the prompt."""
    function: Function | None = None
    """The function, for type 'function'."""
    custom: CustomTool | None = None
    """The custom tool, for type 'custom'."""

    @model_validator(mode="before")
    @classmethod
    def _of_others(cls, values: Any) -> Any:
        return _type_alone(values, RUN_HERE)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, (self.type,) if self.type in RUN_HERE else ())
        return self


class FlatTool(Schema):
    """A tool that the model may call, in the format of the Responses API."""

    type: _Type
    """Type of the tool: 'function', 'custom' or 'namespace'. Tools of other types, which a server would run, are left
    out."""
    name: _ToolName | None = None
    """Name of the tool or the namespace, which may contain letters, digits, '_', '-' and '.'."""
    description: str | None = None
    """Description of the tool, shown to the model."""
    parameters: dict[str, Any] | None = None
    """For a function: JSON schema of the object with the function's arguments."""
    strict: bool | None = None
    """For a function: whether to refuse a schema that can't be enforced completely; used only if a grammar enforces the
    calls."""
    format: CustomFormat | None = None
    """For a custom tool: format of its input; if it is absent, any text is allowed."""
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """For a namespace: its functions and custom tools."""

    @model_validator(mode="before")
    @classmethod
    def _of_others(cls, values: Any) -> Any:
        return _type_alone(values, (*RUN_HERE, "namespace"))

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, ("name",) if self.type in (*RUN_HERE, "namespace") else ())
        return self


class Named(Schema):
    """Object that names a tool."""

    name: Name
    """Name of one of the request's tools."""


class ChosenTool(Schema):
    """Tool choice that names the tools that the model may or must call."""

    type: _Type
    """Type of the tool choice: 'function', 'custom' or 'allowed_tools'."""
    function: Named | None = None
    """In chat requests: the function that the model must call."""
    custom: Named | None = None
    """In chat requests: the custom tool that the model must call."""
    name: Name | None = None
    """In Responses requests: the tool that the model must call."""
    namespace: Name | None = None
    """In Responses requests: the namespace of the tool that the model must call."""
    allowed_tools: AllowedTools | None = None
    """In chat requests: the tools that the model may call."""
    mode: Literal["auto", "required"] | None = None
    """In Responses requests: whether the model must call one of the allowed tools."""
    tools: list[ChosenTool] | None = None
    """In Responses requests: the tools that the model may call."""

    @property
    def allowed(self) -> AllowedTools | None:
        """The tools that the model may call; None if the choice names a single tool."""
        if self.type != "allowed_tools":
            return None
        return self.allowed_tools or AllowedTools(mode=self.mode or "auto", tools=self.tools or [])

    def nameless(self, path: str) -> str:
        """Return the path of the first missing tool name in a chat request; empty if none is missing.

        Args:
            path: path of this object.
        """
        if self.type in RUN_HERE and not self.chosen_name:
            return f"{path}.{self.type}.name"
        allowed = self.allowed
        inner = f"{path}.tools" if self.allowed_tools is None else f"{path}.allowed_tools.tools"
        tools = () if allowed is None else allowed.tools
        return next(filter(None, (tool.nameless(f"{inner}.{index}") for index, tool in enumerate(tools))), "")

    @property
    def chosen_name(self) -> str:
        """The chosen tool's name in the prompt; empty if the type is neither 'function' nor 'custom'."""
        named = self.function or self.custom
        name = named.name if named is not None else self.name or ""
        return flat_name(self.namespace, name) if self.type in RUN_HERE else ""


class AllowedTools(Schema):
    """The subset of the request's tools that the model may call."""

    mode: Literal["auto", "required"] = "auto"
    """Whether the model must call one of the allowed tools."""
    tools: list[ChosenTool]
    """The tools that the model may call."""


ToolChoice = Literal["none", "auto", "required"] | ChosenTool


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name that a tool has in the prompt, with its namespace, if any, as a prefix."""
    return name if not namespace else f"{namespace.rstrip('_')}__{name}"


def _type_alone(values: Any, known: tuple[str, ...]) -> Any:
    """Return a tool unchanged, or only its type if the type is unknown, because its fields may then be of any kind."""
    if not isinstance(values, dict) or not isinstance(values.get("type"), str) or values["type"] in known:
        return values
    record_ignored(f"tool {values['type']}")
    return {"type": values["type"]}


class CalledFunction(Schema):
    """A called function and its arguments."""

    name: Name
    """The function's name."""
    arguments: str
    """Arguments of the function, as the JSON text that the model wrote."""


class CalledCustomTool(Schema):
    """A called custom tool and its input."""

    name: Name
    """The tool's name."""
    input: str
    """The input text."""


class ToolCall(Schema):
    """A tool call in an earlier answer."""

    id: Name
    """Id of the tool call; the message with the tool's output refers to this id."""
    type: Literal["function", "custom"] = "function"
    """Type of the called tool."""
    function: CalledFunction | None = None
    """The function call, for type 'function'."""
    custom: CalledCustomTool | None = None
    """The custom tool's call, for type 'custom'."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, (self.type,))
        return self
