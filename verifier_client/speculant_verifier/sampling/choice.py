"""From logits to the token a request would choose at each node, by its own settings and random stream.

One uniform number belongs to each absolute position of a sequence; the token is the inverse of the cumulative
distribution at that number. So a position's choice is the same whatever was drafted, batched or retried.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import LongTensor, Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from speculant_graph.config import GenerationConfig
from speculant_graph.random_stream import TARGET_STREAM, uniform
from speculant_graph.types import TokenId


def warpers(config: GenerationConfig) -> LogitsProcessorList:
    """Return transformers' own processors for the settings, in its order."""
    chosen = LogitsProcessorList()
    if config.temperature not in (0.0, 1.0):
        chosen.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k > 0:
        chosen.append(TopKLogitsWarper(config.top_k))
    if config.top_p < 1.0:
        chosen.append(TopPLogitsWarper(config.top_p))
    return chosen


def choose(logits: Tensor, positions: Sequence[int], config: GenerationConfig) -> list[TokenId]:
    """Choose one token per node.

    Args:
        logits: ``[T, V]``, any float type.
        positions: absolute index in the sequence of the token chosen after each node, length T.
        config: the request's settings.

    Returns:
        T token ids.
    """
    if config.temperature == 0.0:
        chosen: list[TokenId] = logits.argmax(-1).tolist()
        return chosen
    no_prefix = LongTensor([[]])  # none of the processors looks at it
    scores = warpers(config)(no_prefix, logits.float())
    numbers = [uniform(config.seed, position, TARGET_STREAM) for position in positions]
    return inverse_cumulative(torch.softmax(scores, -1, dtype=torch.float64), numbers)


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
