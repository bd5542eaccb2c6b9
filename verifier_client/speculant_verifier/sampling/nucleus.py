"""transformers' top-p on a CPU, without its sort of the whole vocabulary.

Sorting 200,000 scores takes longer than all else that is done with them. Only tokens near the border of the nucleus
have to be in order: probabilities are summed by buckets of similar size, and those of one bucket are sorted.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculant_graph import _core


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Return the scores with -inf for all but the most probable tokens that hold the mass.

    The same as ``TopPLogitsWarper(top_p)`` but for tokens whose cumulative probability is within about 1e-6 of the
    border, the rounding of the softmax. Of equal scores at the border those of larger token ids stay; transformers
    keeps as many, but leaves open which.

    Args:
        scores: float32 ``[V]`` on the CPU, without NaN and not all -inf.
        top_p: in (0, 1).
    """
    probabilities = torch.softmax(scores, -1).numpy()
    array: NDArray[np.float32] = scores.numpy()
    most_removed = np.float32(1 - top_p)
    kept = np.empty_like(array)
    border, mass = _core.keep_above_border(array, probabilities, float(most_removed), kept)
    border = border[np.argsort(array[border], kind="stable")]
    cumulative = (mass + np.cumsum(probabilities[border], dtype=np.float64)).astype(np.float32)
    border = border[cumulative > most_removed]
    kept[border] = array[border]
    if not len(border) and kept.max() == -np.inf:  # one token stays, however little mass is asked for
        last_of_largest = np.flatnonzero(array == array.max())[-1]
        kept[last_of_largest] = array[last_of_largest]
    return torch.from_numpy(kept)
