"""OpenAI's penalties, which transformers does not have."""

from __future__ import annotations

from torch import Tensor
from transformers import LogitsProcessor


class CountPenalties(LogitsProcessor):
    """Takes from the logits of emitted tokens: ``presence`` once, and ``frequency`` as often as each was emitted.

    Tokens of the prompt do not count. As in OpenAI's API reference.
    """

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        """Take the penalties, which may be negative, and how many tokens the prompt has."""
        self._prompt_length, self._presence, self._frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return new scores ``[n, V]`` after sequences ``[n, L]``."""
        scores = scores.clone()
        for row, emitted in zip(scores, input_ids[:, self._prompt_length :], strict=True):
            tokens, counts = emitted.unique(return_counts=True)
            row[tokens] -= self._presence + self._frequency * counts.to(row.dtype)
        return scores
