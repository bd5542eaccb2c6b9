"""Which parts of a corpus teach how reliable contexts are, and are kept from what is learned before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

SMALLEST_CORPUS = 5_000
"""Smaller corpora, in tokens, teach nothing that would last."""
MOST_COUNTED = 1_000_000
"""Most tokens that are counted for this."""
MOST_HELD_OUT = 20_000
"""Most tokens that are drafted for."""
MOST_PIECES = 20
"""Most pieces that these are in."""

_SMALLEST_PIECE = 500
_HELD_OUT_SHARE, _SMALL_CORPUS_SHARE, _ENOUGH = 50, 10, 8_000


@dataclass(frozen=True, slots=True)
class Slices:
    """Which parts of a token stream are counted and which are drafted for; none overlap."""

    counted: tuple[slice, ...]
    """Counted parts, in order."""
    held_out: tuple[slice, ...]
    """Held-out pieces, in order, each one after the counted part of its index."""


def divide(num_tokens: int) -> Slices:
    """Divide a stream of so many tokens, at least :data:`SMALLEST_CORPUS`, evenly.

    A fiftieth is held out; of small corpora up to a tenth, as little would be learned otherwise.
    """
    held_out = min(MOST_HELD_OUT, num_tokens // _SMALL_CORPUS_SHARE, max(num_tokens // _HELD_OUT_SHARE, _ENOUGH))
    num_pieces = max(1, min(MOST_PIECES, held_out // _SMALLEST_PIECE))
    piece, most_counted = held_out // num_pieces, MOST_COUNTED // num_pieces
    counted, pieces = [], []
    for start, stop in pairwise(num_tokens * i // num_pieces for i in range(num_pieces + 1)):
        end = start + min(stop - start - piece, most_counted)
        # Of large corpora much is left; neighbours are more alike than a request and the corpus are.
        first = end + (stop - piece - end) // 2
        counted.append(slice(start, end))
        pieces.append(slice(first, first + piece))
    return Slices(tuple(counted), tuple(pieces))
