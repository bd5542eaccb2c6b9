"""Chooses the corpus parts for calibration; other training must leave out the held-out pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

SMALLEST_CORPUS = 5_000
"""Minimum corpus size in tokens; calibration on a smaller corpus would not generalise."""
MOST_COUNTED = 1_000_000
"""Maximum number of tokens that calibration counts into its temporary graph."""
MOST_HELD_OUT = 20_000
"""Maximum number of held-out tokens; calibration drafts for them."""
MOST_PIECES = 20
"""Maximum number of held-out pieces."""

_SMALLEST_PIECE = 500
_HELD_OUT_SHARE, _SMALL_CORPUS_SHARE, _ENOUGH = 50, 10, 8_000


@dataclass(frozen=True, slots=True)
class Slices:
    """Counted and held-out parts of a token stream, without overlap."""

    counted: tuple[slice, ...]
    """Counted parts, in the order of the stream."""
    held_out: tuple[slice, ...]
    """Held-out pieces, in the order of the stream; each follows the counted part with the same index."""


def divide(num_tokens: int) -> Slices:
    """Divide a stream evenly; ``num_tokens`` must be at least :data:`SMALLEST_CORPUS`.

    A fiftieth of the stream is held out, but at most :data:`MOST_HELD_OUT` tokens. Up to a tenth of a small corpus is
    held out, because fewer tokens would teach little.
    """
    held_out = min(MOST_HELD_OUT, num_tokens // _SMALL_CORPUS_SHARE, max(num_tokens // _HELD_OUT_SHARE, _ENOUGH))
    num_pieces = max(1, min(MOST_PIECES, held_out // _SMALLEST_PIECE))
    piece, most_counted = held_out // num_pieces, MOST_COUNTED // num_pieces
    counted, pieces = [], []
    for start, stop in pairwise(num_tokens * i // num_pieces for i in range(num_pieces + 1)):
        end = start + min(stop - start - piece, most_counted)
        # Large corpora have unused tokens between the two parts, because adjacent text is more similar than a request.
        first = end + (stop - piece - end) // 2
        counted.append(slice(start, end))
        pieces.append(slice(first, first + piece))
    return Slices(tuple(counted), tuple(pieces))
