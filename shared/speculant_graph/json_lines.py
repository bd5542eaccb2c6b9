"""JSON of files that people write: a name that stands twice in an object is an error, not a loss."""

from __future__ import annotations

import json
from typing import Any


class DoubledNameError(ValueError):
    """A name stands twice in an object."""


def read_json(text: str | bytes) -> Any:
    """Return what a text holds.

    Raises:
        DoubledNameError: a name stands twice in an object; Python's reader would keep the last value alone.
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_table)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for index, name in enumerate(names) if name in names[:index])
        raise DoubledNameError(f"{doubled[:64]!r} stands twice in one object")
    return made
