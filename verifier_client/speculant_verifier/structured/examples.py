"""What JSON of a schema looks like: text that drafts come from before any was written."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 8
_MOST_CHARACTERS = 20_000
_OF_TYPE = {"string": '""', "integer": "0", "number": "0.0", "boolean": "true, false", "array": "[]", "object": "{}"}


def example_of(schema: Any) -> str:
    """Return keys, values that are given, and punctuation of a schema, roughly as JSON; cut off where it is long."""
    return _example(schema, _DEEPEST)[:_MOST_CHARACTERS]


def _example(schema: Any, depth: int) -> str:
    if not isinstance(schema, dict) or not depth:
        return "null"
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return ", ".join(map(json.dumps, values[:256]))
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(name), list):
            return ", ".join(_example(each, depth - 1) for each in schema[name][:16])
    if isinstance(schema.get("properties"), dict):
        properties = list(schema["properties"].items())[:256]
        return "{" + ", ".join(f"{json.dumps(key)}: {_example(value, depth - 1)}" for key, value in properties) + "}"
    if "items" in schema:
        return f"[{_example(schema['items'], depth - 1)}]"
    kind = schema.get("type")
    return _OF_TYPE.get(kind, "null") if isinstance(kind, str) else "null"
