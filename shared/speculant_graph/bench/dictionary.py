"""N-grams counted by plain Python into a dict of dicts: what the arrays are measured against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

Counts = Mapping[tuple[int, ...], Mapping[int, int]]
"""Contexts of 1 to N tokens -> next token -> count."""


def count_by_hand(token_ids: Sequence[int], max_order: int) -> Counts:
    """Count all n-grams of a list of token ids, shape ``[num_tokens]``, in the obvious way."""
    contexts: defaultdict[tuple[int, ...], defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for order in range(1, max_order + 1):
        for end in range(order, len(token_ids)):
            contexts[tuple(token_ids[end - order : end])][token_ids[end]] += 1
    return contexts


def count_by_iterators(token_ids: Sequence[int], max_order: int) -> Counts:
    """Return the same counts, made as fast as plain Python can: slices and tuples come from iterators written in C."""
    contexts: dict[tuple[int, ...], dict[int, int]] = {}
    for order in range(1, max_order + 1):
        columns = [token_ids[start:] for start in range(order)]
        for context, token_id in zip(zip(*columns, strict=False), token_ids[order:], strict=False):
            successors = contexts.setdefault(context, {})
            successors[token_id] = successors.get(token_id, 0) + 1
    return contexts
