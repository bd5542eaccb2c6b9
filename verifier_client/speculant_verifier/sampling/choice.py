"""Tokens of many nodes at once: the inverse of cumulative distributions at the random numbers of their positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speculant_graph.types import TokenId


def inverse_cumulative(probabilities: Tensor, numbers: Sequence[float]) -> list[TokenId]:
    """Invert the cumulative distribution of each row at its number in [0, 1); never a token of probability 0.

    Args:
        probabilities: ``[T, V]`` float64, rows sum to about 1.
        numbers: one per row.
    """
    cumulative = probabilities.cumsum(-1)
    targets = torch.tensor(numbers, dtype=torch.float64, device=probabilities.device)[:, None]
    targets = targets * cumulative[:, -1:]
    # The first entry above the target has a step there, hence probability > 0; rounding may leave none above.
    indices = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    last_possible = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(-1)
    chosen: list[TokenId] = torch.minimum(indices, last_possible).tolist()
    return chosen
