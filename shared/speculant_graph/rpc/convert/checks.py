"""Checks that all converters share; each raises :class:`DraftRequestError` with a one-line reason."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from numpy.typing import NDArray

from speculant_graph.errors import DraftRequestError


def per_sequence(name: str, values: NDArray[Any], count: int) -> list[int]:
    """Return one value per sequence; an empty array stands for zeros."""
    if not values.size:
        return [0] * count
    expect(name, values, count, "the number of sequences")
    entries: list[int] = values.tolist()
    return entries


def expect(name: str, values: Sized, expected: int, meaning: str) -> None:
    """Check the length of an array; ``meaning`` says where the expected one comes from."""
    if len(values) != expected:
        raise DraftRequestError(f"{name} has {len(values)} entries; {meaning} is {expected}")


def check_token_ids(name: str, largest: int, vocabulary_size: int) -> None:
    """Check the largest token id of an array."""
    if largest >= vocabulary_size:
        raise DraftRequestError(f"{name} holds {largest}; the vocabulary has {vocabulary_size} tokens")
