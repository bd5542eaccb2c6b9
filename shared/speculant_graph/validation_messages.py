"""Turns pydantic's errors into plain messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number that is not infinite",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "frozen_set": "a list",
    "path": "a path",
    "dict": "an object",
    "model": "an object",
    "byte_size": "a number of bytes, such as 2GB or 512MB",
}
"""Maps the prefix of a pydantic error's type to a phrase for the expected value."""
_ENDS = ("", "_type", "_parsing", "_from_float", "_number", "_attributes_type", "_unit")
_EXPECTED_BY_TYPE = {f"{kind}{end}": expected for kind, expected in _EXPECTED.items() for end in _ENDS}
_BY_TYPE = {"extra_forbidden": "there is no such setting", "missing": "is missing; give it"}


def expected_by(error: Mapping[str, Any]) -> str:
    """Return the expected value, such as ``a whole number``; empty if the error names no expected value.

    Args:
        error: one of pydantic's ``ValidationError.errors()``.
    """
    if error["type"] == "value_error":
        return ""
    return _EXPECTED_BY_TYPE.get(error["type"]) or str(error["msg"]).partition(" should be ")[2]


def humanise(error: Mapping[str, Any]) -> str:
    """Return the predicate of a message whose subject is the value's name: ``must be a whole number``.

    Args:
        error: one of pydantic's ``ValidationError.errors()``; a validator's own text is kept, with its first letter in
            lower case.
    """
    if message := _BY_TYPE.get(error["type"]):
        return message
    if expected := expected_by(error):
        return f"must be {expected}"
    text = str(error["msg"]).removeprefix("Value error, ").partition(" after validation")[0]
    _, is_rule, rule = text.partition(" should ")
    return f"must {rule}" if is_rule and error["type"] != "value_error" else text[:1].lower() + text[1:]
