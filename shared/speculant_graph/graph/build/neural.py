"""Trains a graph's neural model on its corpus, or trains it further on new tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from speculant_graph import _core
from speculant_graph.graph.build.count import map_tokens
from speculant_graph.graph.build.slices import SMALLEST_CORPUS, divide
from speculant_graph.graph.layout import UInt32Array

MOST_POSITIONS = 2_500_000
"""Maximum number of training positions, which take about 23 s (9.3 µs each, on a shared core of an Intel Xeon)."""
LARGE_CORPUS, MOST_OF_LARGE = 20_000_000, 1_200_000
"""Size in tokens from which a corpus counts as large (about 90 MB of text), and the maximum number of training
positions for a large corpus. A build from 20 million tokens takes 38 s without a model, so training takes at most a
quarter of the build's time."""
PASSES = 4
"""Number of times that training uses every position of a small corpus."""


def train_model(
    stream: Path,
    vocabulary_size: int,
    on_progress: Callable[[int, int], None],
    *,
    leaves_out: bool,
    start: UInt32Array | None = None,
) -> UInt32Array | None:
    """Train a neural model; the same stream always gives the same model.

    Args:
        stream: file of little-endian 32-bit token ids, with document separators if there are boundaries.
        vocabulary_size: size of the vocabulary; token ids outside it are skipped.
        on_progress: called with (positions done, all positions). An exception from this callback ends the training.
        leaves_out: whether training leaves out the pieces held out for calibration.
        start: a model to train further, as 32-bit words.

    Returns:
        The model as 32-bit words, in the layout of ``native/neural/model.hpp``; None if the corpus is too small.
    """
    token_ids = map_tokens(stream)
    if token_ids.size < SMALLEST_CORPUS:
        return None
    pieces = [(piece.start, piece.stop) for piece in divide(token_ids.size).held_out] if leaves_out else []
    raised: list[BaseException] = []

    def goes_on(done: int, total: int) -> bool:
        try:
            on_progress(done, total)
        except BaseException as error:  # no exception, not even an interrupt, may pass through the C++ core
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
