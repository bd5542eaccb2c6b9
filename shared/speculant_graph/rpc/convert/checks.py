"""Checks that all converters share; each raises :class:`DraftRequestError` with a one-line reason."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import accumulate, pairwise

from speculant_graph.errors import DraftRequestError


def per_sequence(name: str, values: Iterable[int], count: int) -> list[int]:
    """Return one value per sequence; an empty array stands for zeros."""
    entries = list(values)
    if not entries:
        return [0] * count
    expect(name, entries, count, "the number of sequences")
    return entries


def expect(name: str, values: Sized, expected: int, meaning: str) -> None:
    """Check the length of an array; ``meaning`` says where the expected one comes from."""
    if len(values) != expected:
        raise DraftRequestError(f"{name} has {len(values)} entries; {meaning} is {expected}")


def spans(name: str, values: Sized, lengths: Iterable[int]) -> list[slice]:
    """Return where each sequence's members lie in ``values``."""
    ends = list(accumulate(lengths, initial=0))
    expect(name, values, ends[-1], "the sum of its lengths")
    return [slice(start, end) for start, end in pairwise(ends)]


def check_token_ids(name: str, largest: int, vocabulary_size: int) -> None:
    """Check the largest token id of an array."""
    if largest >= vocabulary_size:
        raise DraftRequestError(f"{name} holds {largest}; the vocabulary has {vocabulary_size} tokens")
