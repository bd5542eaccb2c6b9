"""Reads JSON that people write by hand. A repeated name in an object is an error, so that no value is lost silently."""

from __future__ import annotations

import json
from typing import Any


class DoubledNameError(ValueError):
    """A JSON object contains the same name twice."""


def read_json(text: str | bytes) -> Any:
    """Return the Python value that a JSON text stands for.

    Raises:
        DoubledNameError: an object repeats a name; Python's reader would keep only the last value.
        ValueError: the text is not JSON.
        RecursionError: the JSON is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_table)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for index, name in enumerate(names) if name in names[:index])
        raise DoubledNameError(f"{doubled[:64]!r} occurs twice in one object")
    return made
