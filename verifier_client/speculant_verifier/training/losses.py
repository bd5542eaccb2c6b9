"""How far a draft model is from the target, in nats."""

from __future__ import annotations

import torch
from torch import Tensor

_NEVER = -1e30  # a finite logit: minus infinity would make NaN of 0 times its logarithm, and of its gradient


def divergence(logits: Tensor, label_ids: Tensor, probabilities: Tensor, is_label: Tensor) -> Tensor:
    """Return the forward divergence of the target from the model, KL(q ‖ p), of every position.

    Of the target only some tokens' probabilities are known; all others are one class, for both. With one label of
    probability 1 this is the cross-entropy.

    Args:
        logits: the model's, ``[n, V]``.
        label_ids: ``[n, k]``; those that are not meant repeat one that is.
        probabilities: the target's, ``[n, k]``; their sum is at most 1 but for rounding.
        is_label: which of the k are meant, ``[n, k]``.

    Returns:
        ``[n]``, float32.
    """
    logits = logits.float()
    total = logits.logsumexp(-1)
    known = logits.gather(1, label_ids) - total[:, None]
    # Not log(1 - sum p): where the model is nearly sure, nothing but rounding is left of the difference.
    other = logits.scatter(1, label_ids, _NEVER).logsumexp(-1) - total
    rest = (1 - probabilities.sum(-1)).clamp(min=0)
    differences = torch.where(is_label, torch.xlogy(probabilities, probabilities) - probabilities * known, 0)
    return differences.sum(-1) + torch.xlogy(rest, rest) - rest * other
