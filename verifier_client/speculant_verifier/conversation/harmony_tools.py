"""Tool declarations in harmony's prompts: TypeScript types, written in the same form as in OpenAI's own library.

This module also writes the parts of a JSON schema that OpenAI's library omits. For example, OpenAI's library writes
'any' for a reference to a type, whereas this module writes the type itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_DEEPEST = 32
"""Maximum nesting depth of a schema; deeper levels are written as the type ``any``."""

_Schema = Mapping[str, Any]
_ALIASES = {"integer": "number"}
_OF_OBJECTS = ("properties", "additionalProperties", "patternProperties")
_KINDS = {"string", "number", "boolean", "null"}


def namespace_of(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the TypeScript namespace that declares the tools of a conversation.

    Args:
        tools: tools in the format of OpenAI's chats: functions with JSON schemas, or custom tools with text input.
    """
    lines = ["## functions\n", "namespace functions {\n"]
    for tool in tools:
        declared = tool.get(str(tool.get("type", "function")))
        declared = declared if isinstance(declared, Mapping) else tool
        lines += [f"// {line}" for line in _lines(declared.get("description"))]
        parameters = declared.get("parameters")
        if tool.get("type") == "custom":
            parameters = {"type": "string"}
        given = "" if parameters is None else f"_: {TypeWriter(parameters).write(parameters)}"
        lines.append(f"type {declared.get('name')} = ({given}) => any;\n")
    return "\n".join([*lines, "} // namespace functions"])


class TypeWriter:
    """Writes the TypeScript types of one JSON schema."""

    def __init__(self, root: Any) -> None:
        """Store the whole schema, against which references are resolved."""
        self._root = root
        self._open: list[str] = []  # references being resolved
        self._depth = 0

    def write(self, schema: Any, indent: str = "") -> str:
        """Return the TypeScript type of a schema.

        Args:
            schema: the schema; if it is not an object, the type is ``any``.
            indent: indentation of the type's lines.
        """
        if not isinstance(schema, Mapping) or self._depth >= _DEEPEST:
            return "any"
        self._depth += 1
        try:
            return self._written(schema, indent)
        finally:
            self._depth -= 1

    def _written(self, schema: _Schema, indent: str) -> str:
        if isinstance(schema.get("oneOf"), list):
            return "".join(self._variant(each, indent) for each in schema["oneOf"])
        kind = schema.get("type")
        if isinstance(kind, list) and (kinds := [each for each in kind if isinstance(each, str)]):
            if any(name in schema for name in (*_OF_OBJECTS, "items", "enum")):
                return self._any_of([{**schema, "type": each} for each in kinds], indent)
            return " | ".join(_ALIASES.get(each, each) for each in kinds)
        if kind == "object" or (kind is None and any(name in schema for name in _OF_OBJECTS)):
            return self._object(schema, indent)
        if (values := _values(schema)) is not None:
            return values
        if kind == "array" or (kind is None and ("items" in schema or "prefixItems" in schema)):
            return self._array(schema, indent)
        if kind == "integer" or kind in _KINDS:
            return _ALIASES.get(kind, str(kind))
        return self._composed(schema, indent)

    def _composed(self, schema: _Schema, indent: str) -> str:
        """Return the type of a reference, ``anyOf`` or ``allOf``, which OpenAI's library does not support."""
        if isinstance(reference := schema.get("$ref"), str):
            return self._referenced(reference, indent)
        if isinstance(schema.get("anyOf"), list):
            return self._any_of(schema["anyOf"], indent)
        if isinstance(schema.get("allOf"), list):
            return " & ".join(self.write(each, indent) for each in schema["allOf"]) or "any"
        return "any"

    def _any_of(self, variants: Sequence[Any], indent: str) -> str:
        return " | ".join(dict.fromkeys(self.write(each, indent) for each in variants)) or "any"

    def _referenced(self, reference: str, indent: str) -> str:
        if reference in self._open:  # a type that contains itself is written by name
            return reference.rpartition("/")[2] or "any"
        found: Any = self._root
        for name in reference.removeprefix("#").strip("/").split("/"):
            if name:
                name = name.replace("~1", "/").replace("~0", "~")
                found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return reference.rpartition("/")[2] or "any"
        self._open.append(reference)
        try:
            return self.write(found, indent)
        finally:
            self._open.pop()

    def _array(self, schema: _Schema, indent: str) -> str:
        if isinstance(schema.get("prefixItems"), list):
            return f"[{', '.join(self.write(each, indent) for each in schema['prefixItems'])}]"
        return f"{self.write(schema['items'], indent)}[]" if "items" in schema else "Array<any>"

    def _variant(self, variant: Any, indent: str) -> str:
        text = f"\n{indent} | {self._nullable(variant, f'{indent}   ')}"
        comments = [described] if (described := _text(variant, "description")) else []
        if isinstance(variant, Mapping) and "default" in variant:
            is_plain = isinstance(variant["default"], str) and not _lists(variant)
            comments.append(f"default: {_default(variant) if is_plain else _json(variant['default'])}")
        return f"{text} // {' '.join(comments)}" if comments else text

    def _nullable(self, schema: Any, indent: str) -> str:
        text = self.write(schema, indent)
        is_nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
        return f"{text} | null" if is_nullable and "null" not in text else text

    def _object(self, schema: _Schema, indent: str) -> str:
        lines = [f"{indent}// {described}\n"] if (described := _text(schema, "description")) is not None else []
        lines.append("{\n")
        properties = schema.get("properties")
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        if isinstance(properties, Mapping):
            for name, value in properties.items():
                mark = "" if name in required else "?"
                lines += self._property(f"{name}{mark}", value, indent)
        others = schema.get("additionalProperties")
        if isinstance(others, Mapping) and others:
            lines.append(f"{indent}[key: string]: {self.write(others, f'{indent}    ')},\n")
        return "".join([*lines, f"{indent}}}"])

    def _property(self, name: str, value: Any, indent: str) -> Iterator[str]:
        schema: _Schema = value if isinstance(value, Mapping) else {}
        if (title := _text(schema, "title")) is not None:
            yield f"{indent}// {title}\n{indent}//\n"
        described = _text(schema, "description")
        if described is not None and "oneOf" not in schema:
            yield f"{indent}// {described}\n"
        examples = schema.get("examples")
        if isinstance(examples, list) and examples:
            yield f"{indent}// Examples:\n"
            for example in examples:
                if isinstance(example, str):
                    yield f'{indent}// - "{example}"\n'
        if isinstance(schema.get("oneOf"), list):
            yield from self._one_of(name, schema, described, indent)
            return
        yield f"{indent}{name}: {self._nullable(value, f'{indent}    ')},"
        if "default" in schema and "oneOf" not in schema:
            yield f" // default: {_default(schema)}"
        yield "\n"

    def _one_of(self, name: str, schema: _Schema, described: str | None, indent: str) -> Iterator[str]:
        variants = schema["oneOf"]
        first = _text(variants[0], "description") if variants else None
        is_above = described is not None and described != first
        if is_above:
            yield f"{indent}// {described}\n"
        if "default" in schema:
            yield f"{indent}// default: {_default(schema)}\n"
        yield f"{indent}{name}:\n"
        for index, variant in enumerate(variants):
            own = _text(variant, "description")
            comments = [own] if own is not None and own != described and not (is_above and index == 0) else []
            if isinstance(variant, Mapping) and "default" in variant:
                comments.append(f"default: {_default(variant)}")
            behind = f" // {' '.join(comments)}" if comments else ""
            yield f"{indent} | {self._nullable(variant, f'{indent}   ')}{behind}\n"
        yield f"{indent},\n"


def _values(schema: _Schema) -> str | None:
    """Return the union of the values that a schema lists, as a type; None if the schema lists no values."""
    values = schema.get("enum")
    if isinstance(values, list) and values:
        if schema.get("type") == "string":
            values = [value for value in values if isinstance(value, str)]
        if values:
            return " | ".join(f'"{value}"' if isinstance(value, str) else _json(value) for value in values)
    return _json(schema["const"]) if "const" in schema else None


def _default(schema: _Schema) -> str:
    default = schema["default"]
    if isinstance(default, str):
        return default if _lists(schema) else f'"{default}"'
    return _json(default)


def _lists(schema: _Schema) -> bool:
    return isinstance(schema.get("enum"), list) and bool(schema["enum"])


def _text(schema: Any, name: str) -> str | None:
    text = schema.get(name) if isinstance(schema, Mapping) else None
    return text if isinstance(text, str) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _lines(text: Any) -> list[str]:
    if not isinstance(text, str) or not text:
        return []
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
