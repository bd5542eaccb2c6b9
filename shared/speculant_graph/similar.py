"""Suggests the most similar known name for a misspelt name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_LEAST_RATIO = 0.75
"""Minimum share of letters that a suggested name has in common with the misspelt name."""


def similar(name: str, known: Iterable[str], least_ratio: float = _LEAST_RATIO) -> str | None:
    """Return the known name most similar to a misspelt one; None if no name is similar enough.

    For dotted names (section and setting), only the last parts must be similar, because an equal section says little
    about the setting. If several last parts are equally similar, the similarity of the whole names decides.

    Args:
        name: the misspelt name.
        known: the known names.
        least_ratio: minimum share of common letters, from 0 to 1.
    """
    found = max(known, key=lambda each: (_ratio(_last(name), _last(each)), _ratio(name, each)), default=None)
    return found if found is not None and _ratio(_last(name), _last(found)) >= least_ratio else None


def question(name: str, known: Iterable[str]) -> str:
    """Return ``is it NAME?`` for the most similar known name; an empty text if no name is similar enough."""
    found = similar(name, known)
    return "" if found is None else f"is it {found}?"


def _last(name: str) -> str:
    return re.split(r"\.|__", name.lstrip("-").lower().replace("-", "_"))[-1]


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
