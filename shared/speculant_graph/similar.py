"""Which known name a misspelt one means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_LEAST_RATIO = 0.75
"""Of letters in common, for a name to be worth a suggestion."""


def similar(name: str, known: Iterable[str], least_ratio: float = _LEAST_RATIO) -> str | None:
    """Return the known name that a misspelt one most resembles; None if none really does.

    Only the last parts of dotted names have to be similar: equal sections say nothing. Of equally similar names the one
    that is more similar as a whole is returned.

    Args:
        name: the misspelt one.
        known: the others.
        least_ratio: of letters in common, from 0 to 1.
    """
    found = max(known, key=lambda each: (_ratio(_last(name), _last(each)), _ratio(name, each)), default=None)
    return found if found is not None and _ratio(_last(name), _last(found)) >= least_ratio else None


def question(name: str, known: Iterable[str]) -> str:
    """Return ``is it NAME?`` for the known name that is similar; empty if there is none."""
    found = similar(name, known)
    return "" if found is None else f"is it {found}?"


def _last(name: str) -> str:
    return re.split(r"\.|__", name.lstrip("-").lower().replace("-", "_"))[-1]


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
