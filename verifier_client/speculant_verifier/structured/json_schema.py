"""Schemas of ordinary libraries, in the words of JSON Schema that llguidance knows.

What has an exact other word is rewritten: ``propertyNames`` as zod's records have it, ``not`` of types, ``uniqueItems``
of a few values, formats that are names alone. What has none is refused by llguidance, by its name; only where a client
does not ask to be strict, ``uniqueItems`` and formats that it does not know are left to the model.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

_TYPES = ("null", "boolean", "number", "string", "array", "object")
"""All of JSON; "integer" is a part of "number"."""
_KNOWN_FORMATS = frozenset(
    {*("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")}
)
"""Those of llguidance."""
_MOST_ARRANGED = 4
"""Values whose arrangements are few enough to be written down: of 4 there are 65."""
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Words with an object of schemas."""
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_OF_SCHEMA = ("additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else")
_DEEPEST = 64


def prepared(schema: Any, *, is_strict: bool) -> Any:
    """Return a schema that means the same in llguidance's words, as far as there are any.

    Args:
        schema: as a client gave it.
        is_strict: whether every word of it counts.
    """
    return _prepared(schema, is_strict, _DEEPEST)


def _prepared(schema: Any, is_strict: bool, depth: int) -> Any:
    if not isinstance(schema, Mapping) or not depth:
        return schema
    found = dict(schema)
    for name in _OF_SCHEMAS:
        if isinstance(found.get(name), Mapping):
            found[name] = {key: _prepared(each, is_strict, depth - 1) for key, each in found[name].items()}
    for name in _LISTS:
        if isinstance(found.get(name), list):
            found[name] = [_prepared(each, is_strict, depth - 1) for each in found[name]]
    for name in _OF_SCHEMA:
        if isinstance(found.get(name), Mapping):
            found[name] = _prepared(found[name], is_strict, depth - 1)
    if isinstance(found.get("items"), list):
        found["items"] = [_prepared(each, is_strict, depth - 1) for each in found["items"]]
    _without_names(found)
    _without_conditions(found)
    _without_repetitions(found, is_strict)
    kind = found.get("format")
    if isinstance(kind, str) and kind not in _KNOWN_FORMATS and (not is_strict or "pattern" in found):
        del found["format"]  # by the standard a name that is not known says nothing
    return False if found.get("not") in ({}, True) else _without_not(found)


def _without_names(schema: dict[str, Any]) -> None:
    """Say by its properties which names an object has."""
    names = schema.get("propertyNames")
    if names is True:
        del schema["propertyNames"]
    if not isinstance(names, Mapping):
        return
    if not names.keys() - {"type", "$schema"} and names.get("type", "string") == "string":
        del schema["propertyNames"]
        return
    if names.keys() - {"type", "enum", "const", "pattern"}:
        return
    rest = schema.get("additionalProperties", True)
    own = schema.get("properties", {})
    if "patternProperties" in schema or not isinstance(own, Mapping):
        return
    values = names.get("enum", [names["const"]] if "const" in names else None)
    if isinstance(values, list) and "pattern" not in names and all(isinstance(value, str) for value in values):
        # A name that is not allowed is none, whatever it was to hold.
        schema["properties"] = {value: own.get(value, rest) for value in values}
    elif values is None and isinstance(names.get("pattern"), str) and not own:
        schema["patternProperties"] = {names["pattern"]: rest}
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _without_conditions(schema: dict[str, Any]) -> None:
    """Leave out conditions that lead to nothing, and take the branch of those that always hold."""
    if "if" not in schema:
        schema.pop("then", None)
        schema.pop("else", None)
        return
    if schema["if"] in (True, {}, False):
        branch = schema.get("else" if schema["if"] is False else "then", True)
    elif schema.get("then", True) in (True, {}) and schema.get("else", True) in (True, {}):
        branch = True
    else:
        return
    for name in ("if", "then", "else"):
        schema.pop(name, None)
    if branch not in (True, {}):
        schema["allOf"] = [*schema.get("allOf", []), branch]


def _without_repetitions(schema: dict[str, Any], is_strict: bool) -> None:
    """Write down the arrays of different values, where they are few."""
    unique = schema.get("uniqueItems")
    if unique is None:
        return
    most = schema.get("maxItems")
    if unique is False or (isinstance(most, int) and most <= 1):
        del schema["uniqueItems"]
        return
    items = schema.get("items")
    values = _values_of(items) if "prefixItems" not in schema and "contains" not in schema else None
    if schema.get("type") == "array" and values is not None and len(values) <= _MOST_ARRANGED:
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(values))
        sizes = range(least, min(most, len(values)) + 1) if isinstance(least, int) and isinstance(most, int) else ()
        found = [list(each) for size in sizes for each in itertools.permutations(values, size)]
        if found:
            for name in ("uniqueItems", "items", "minItems", "maxItems", "type"):
                schema.pop(name, None)
            schema["enum"] = found
            return
    if not is_strict:
        del schema["uniqueItems"]


def _values_of(schema: Any) -> list[Any] | None:
    """Return the values that a schema allows, if it lists them; equal ones once."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(values := schema.get("enum"), list):
        return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]
    return [False, True] if schema.get("type") == "boolean" else None


def _without_not(schema: dict[str, Any]) -> dict[str, Any]:
    """Say which types are left where some are excluded."""
    excluded = schema.get("not")
    if excluded is False:
        return {name: value for name, value in schema.items() if name != "not"}
    if not isinstance(excluded, Mapping) or excluded.keys() != {"type"}:
        return schema
    types = excluded["type"] if isinstance(excluded["type"], list) else [excluded["type"]]
    own = schema.get("type", list(_TYPES))
    left = [kind for kind in (own if isinstance(own, list) else [own]) if kind not in types]
    # Of numbers integers can't be told apart by a type, nor can a schema have no type at all.
    if "integer" in types or ("number" in types and "integer" in left) or not left:
        return schema
    return {name: value for name, value in schema.items() if name != "not"} | {"type": left}
