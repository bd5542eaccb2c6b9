"""The neural model of a graph: trained on the tokens of its corpus, or trained further on new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from speculant_graph import _core
from speculant_graph.graph.build.count import map_tokens
from speculant_graph.graph.build.slices import SMALLEST_CORPUS, divide
from speculant_graph.graph.layout import UInt32Array

MOST_POSITIONS = 2_500_000
"""Most positions that are learned from, which takes about 23 s (9.3 µs each, on a shared core of an Intel Xeon)."""
LARGE_CORPUS, MOST_OF_LARGE = 20_000_000, 1_200_000
"""From so many tokens on, about 90 MB of text, which took 38 s to build without a model: most positions that are
learned from, so that a build takes at most a quarter of its time for the model."""
PASSES = 4
"""How often every position of a smaller corpus is learned from."""


def train_model(
    stream: Path,
    vocabulary_size: int,
    on_progress: Callable[[int, int], None],
    *,
    leaves_out: bool,
    start: UInt32Array | None = None,
) -> UInt32Array | None:
    """Train a model; the same stream gives the same words.

    Args:
        stream: file of little-endian 32-bit token ids, document separators among them if there are boundaries.
        vocabulary_size: ids are below it; others are passed over.
        on_progress: called with (positions that are done, all of them). What it raises ends the training.
        leaves_out: whether the pieces that calibration is learned from are left out.
        start: the words of a model to train further.

    Returns:
        The words of the model, as ``native/neural/model.hpp`` draws them; None if the corpus is too small.
    """
    token_ids = map_tokens(stream)
    if token_ids.size < SMALLEST_CORPUS:
        return None
    pieces = [(piece.start, piece.stop) for piece in divide(token_ids.size).held_out] if leaves_out else []
    raised: list[BaseException] = []

    def goes_on(done: int, total: int) -> bool:
        try:
            on_progress(done, total)
        except BaseException as error:  # an interrupt, too, must not run through the core
            raised.append(error)
        return not raised

    most = MOST_POSITIONS if token_ids.size < LARGE_CORPUS else MOST_OF_LARGE
    words = _core.train_neural(
        token_ids,
        np.array(pieces, np.int64).reshape(-1, 2),
        vocabulary_size,
        min(most, PASSES * token_ids.size),
        start,
        goes_on,
    )
    if raised:
        raise raised[0]
    return words if words.size else None
