"""The most probable tokens of many rows of logits, for drafters that learn from them."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 64


def top_tokens(logits: Tensor, count: int) -> Tensor:
    """Return the tokens of the largest logits of every row, best first.

    They lie in the blocks with the largest maxima, so one pass over the logits finds these blocks and the rest looks
    at few numbers: on a CPU a third of the time of ``topk`` over 201,088 logits, and about that of a copy.

    Args:
        logits: shape ``[..., V]``, any device and float dtype.
        count: how many tokens, at least 1; at most V are returned.

    Returns:
        Token ids, int64, shape ``[..., min(count, V)]``; which of equal ones come first is not defined.
    """
    count = min(count, logits.shape[-1])
    size = logits.shape[-1] - logits.shape[-1] % _BLOCK
    if size // _BLOCK <= count:
        return logits.topk(count).indices
    blocks = logits[..., :size].unflatten(-1, (-1, _BLOCK))
    begins = blocks.amax(-1).topk(count).indices.unsqueeze(-1) * _BLOCK
    candidates = (begins + torch.arange(_BLOCK, device=logits.device)).flatten(-2)
    rest = torch.arange(size, logits.shape[-1], device=logits.device).expand(*candidates.shape[:-1], -1)
    candidates = torch.cat((candidates, rest), -1)
    return candidates.gather(-1, logits.gather(-1, candidates).topk(count).indices)
