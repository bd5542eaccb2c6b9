"""Rewrites JSON schemas of common libraries so that they use keywords that llguidance supports.

Keywords with an exact equivalent are rewritten: ``propertyNames`` as in zod's records, ``not`` with types,
``uniqueItems`` over a few values, and formats that are only annotations. All other unsupported keywords are rejected by
llguidance, whose error names them. If the client does not require strictness, ``uniqueItems`` and unknown formats are
not enforced.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

_TYPES = ("null", "boolean", "number", "string", "array", "object")
"""All types of JSON; "integer" is a subset of "number"."""
_KNOWN_FORMATS = frozenset(
    {*("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")}
)
"""Formats that llguidance supports."""
_MOST_ARRANGED = 4
"""Maximum number of values whose arrangements in arrays are enumerated; 4 values have 65 arrangements."""
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value is an object that maps names to schemas."""
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_OF_SCHEMA = ("additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else")
_DEEPEST = 64


def prepared(schema: Any, *, is_strict: bool) -> Any:
    """Rewrite a schema, as far as possible, so that it uses only keywords that llguidance supports.

    Args:
        schema: the client's schema.
        is_strict: whether every keyword must be enforced.
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
        del found["format"]  # the standard ignores unknown formats
    return False if found.get("not") in ({}, True) else _without_not(found)


def _without_names(schema: dict[str, Any]) -> None:
    """Replace ``propertyNames`` with equivalent properties or pattern properties."""
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
        # A property whose name is not allowed can't exist, so it is dropped.
        schema["properties"] = {value: own.get(value, rest) for value in values}
    elif values is None and isinstance(names.get("pattern"), str) and not own:
        schema["patternProperties"] = {names["pattern"]: rest}
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _without_conditions(schema: dict[str, Any]) -> None:
    """Drop if-then-else conditions without effect, and replace constant conditions by the branch that applies."""
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
    """Replace ``uniqueItems`` with an enumeration of the arrays of distinct values, if there are few."""
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
    """Return the distinct values that a schema allows; None if it does not list them."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(values := schema.get("enum"), list):
        return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]
    return [False, True] if schema.get("type") == "boolean" else None


def _without_not(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace the types that ``not`` excludes with the list of the remaining types."""
    excluded = schema.get("not")
    if excluded is False:
        return {name: value for name, value in schema.items() if name != "not"}
    if not isinstance(excluded, Mapping) or excluded.keys() != {"type"}:
        return schema
    types = excluded["type"] if isinstance(excluded["type"], list) else [excluded["type"]]
    own = schema.get("type", list(_TYPES))
    left = [kind for kind in (own if isinstance(own, list) else [own]) if kind not in types]
    # No type stands for non-integer numbers, and a schema's list of types can't be empty.
    if "integer" in types or ("number" in types and "integer" in left) or not left:
        return schema
    return {name: value for name, value in schema.items() if name != "not"} | {"type": left}
