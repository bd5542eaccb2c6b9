"""Request objects for tools, tool choices and tool calls, in chats and responses."""

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
"""Types of tools that clients run. Tools that OpenAI's servers run are not supported and not shown to the model."""


class Function(Schema):
    """A function that the model may call."""

    name: _ToolName
    """Name of the function: letters, digits, '_', '-' and '.'."""
    description: str | None = None
    """Description for the model."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the object with the function's arguments."""
    strict: bool | None = None
    """Whether to refuse a schema that can't be enforced completely; used only if a grammar enforces the calls."""


class Grammar(Schema):
    """A grammar for text."""

    syntax: Literal["lark", "regex"]
    """Syntax of the grammar: 'lark' in llguidance's variant, or 'regex' in Rust's variant."""
    definition: Annotated[str, Field(min_length=1)]
    """The grammar."""


class CustomFormat(Schema):
    """Format of a custom tool's input: any text, or text that matches a grammar.

    In chats the grammar is a nested object.
    """

    type: Literal["text", "grammar"] = "text"
    """Whether the input is any text, or text that matches a grammar."""
    grammar: Grammar | None = None
    """In chats: the grammar, for type 'grammar'."""
    syntax: Literal["lark", "regex"] | None = None
    """In responses: syntax of the grammar, for type 'grammar'."""
    definition: Annotated[str, Field(min_length=1)] | None = None
    """In responses: the grammar, for type 'grammar'."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.type == "grammar" and self.given is None:
            raise ValueError("lacks a grammar: syntax and definition")
        return self

    @property
    def given(self) -> Grammar | None:
        """The grammar, if there is one."""
        if self.type == "grammar" and self.syntax is not None and self.definition is not None:
            return Grammar(syntax=self.syntax, definition=self.definition)
        return self.grammar if self.type == "grammar" else None


class CustomTool(Schema):
    """A tool that takes text."""

    name: _ToolName
    """Name of the tool: letters, digits, '_', '-' and '.'."""
    description: str | None = None
    """Description for the model."""
    format: CustomFormat | None = None
    """Format of the tool's input; if it is absent, any text is allowed."""


class Tool(Schema):
    """A tool that the model may call."""

    type: _Type
    """'function' or 'custom'; tools of other types are left out."""
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
    """A tool that the model may call, in the format of responses."""

    type: _Type
    """'function', 'custom' or 'namespace'; tools of other types, which a server would run, are left out."""
    name: _ToolName | None = None
    """Name of the tool or the namespace: letters, digits, '_', '-' and '.'."""
    description: str | None = None
    """Description for the model."""
    parameters: dict[str, Any] | None = None
    """For a function: JSON schema of the object with its arguments."""
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
    """The name of a tool."""

    name: Name
    """Name of one of the tools."""


class ChosenTool(Schema):
    """Which tools may or must be called."""

    type: _Type
    """'function', 'custom' or 'allowed_tools'."""
    function: Named | None = None
    """In chats: the function that must be called."""
    custom: Named | None = None
    """In chats: the custom tool that must be called."""
    name: Name | None = None
    """In responses: the tool that must be called."""
    namespace: Name | None = None
    """In responses: the tool's namespace."""
    allowed_tools: AllowedTools | None = None
    """In chats: the tools that may be called."""
    mode: Literal["auto", "required"] | None = None
    """In responses: whether one of the allowed tools must be called."""
    tools: list[ChosenTool] | None = None
    """In responses: the tools that may be called."""

    @property
    def allowed(self) -> AllowedTools | None:
        """The tools that may be called; None if one tool is chosen."""
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
        """The tool's name in the prompt; empty if the type is not supported."""
        named = self.function or self.custom
        name = named.name if named is not None else self.name or ""
        return flat_name(self.namespace, name) if self.type in RUN_HERE else ""


class AllowedTools(Schema):
    """The tools that may be called, as a subset of the request's tools."""

    mode: Literal["auto", "required"] = "auto"
    """Whether one of these tools must be called."""
    tools: list[ChosenTool]
    """The tools that may be called."""


ToolChoice = Literal["none", "auto", "required"] | ChosenTool


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name that a namespace's tool has in the prompt."""
    return name if not namespace else f"{namespace.rstrip('_')}__{name}"


def _type_alone(values: Any, known: tuple[str, ...]) -> Any:
    """Return a tool unchanged, or only its type if the type is unknown, because such a tool may have any fields."""
    if not isinstance(values, dict) or not isinstance(values.get("type"), str) or values["type"] in known:
        return values
    record_ignored(f"tool {values['type']}")
    return {"type": values["type"]}


class CalledFunction(Schema):
    """A called function and its arguments."""

    name: Name
    """The function's name."""
    arguments: str
    """Arguments as JSON text, as the model wrote them."""


class CalledCustomTool(Schema):
    """A custom tool call and its input."""

    name: Name
    """The tool's name."""
    input: str
    """The input text."""


class ToolCall(Schema):
    """A tool call in an earlier answer."""

    id: Name
    """Id of the call in the answer; the tool's message refers to it."""
    type: Literal["function", "custom"] = "function"
    """Type of the tool."""
    function: CalledFunction | None = None
    """The function call, for type 'function'."""
    custom: CalledCustomTool | None = None
    """The custom tool's call, for type 'custom'."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, (self.type,))
        return self
