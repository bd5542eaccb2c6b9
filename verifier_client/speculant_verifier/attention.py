"""Attention that takes any boolean mask and gpt-oss's sinks, on CPU and GPU.

A sink is a learned logit per head that takes part in the softmax and contributes nothing: exactly one more key whose
value is zero. Eight spare dimensions of query and key carry that logit, so the fused kernel does the rest and no
``[batch, heads, T, L]`` bias is ever built. Models without sinks get the kernel as it is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

IMPLEMENTATION = "speculant"
"""Name under which transformers knows the functions (gpt-oss refuses names that contain "sdpa")."""

_SPARE_DIMENSIONS = 8  # kernels want head sizes in multiples of 8


def masked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with an arbitrary mask.

    Args:
        module: the attention layer (unused; part of the transformers interface).
        query: ``[batch, heads, T, d]``.
        key: ``[batch, kv_heads, L, d]``.
        value: ``[batch, kv_heads, L, d]``.
        attention_mask: bool, broadcastable to ``[batch, heads, T, L]``, True = visible; None = causal.
        scaling: factor of the logits, default ``d ** -0.5``.
        dropout: ignored, this is inference.
        s_aux: sink logits ``[heads]`` or None.

    Returns:
        ``[batch, T, heads, d]`` and None (no attention weights).
    """
    batch, heads, length, dimensions = query.shape
    grouped = heads != key.shape[1]
    if s_aux is None:
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None and length > 1,
            scale=scaling, enable_gqa=grouped,
        )  # fmt: skip
        return output.transpose(1, 2).contiguous(), None
    if attention_mask is None:
        past = key.shape[2] - length
        attention_mask = torch.ones(length, past + length, dtype=torch.bool, device=query.device).tril(past)
    scaling = dimensions**-0.5 if scaling is None else scaling
    spare_query = query.new_zeros(batch, heads, length, _SPARE_DIMENSIONS)
    spare_query[..., 0] = (s_aux.to(query.dtype) / scaling)[None, :, None]
    key = F.pad(key, (0, _SPARE_DIMENSIONS, 0, 1))
    key[:, :, -1, dimensions] = 1
    output = F.scaled_dot_product_attention(
        torch.cat([query, spare_query], -1),
        key,
        F.pad(value, (0, _SPARE_DIMENSIONS, 0, 1)),
        attn_mask=F.pad(attention_mask, (0, 1), value=True),
        scale=scaling,
        enable_gqa=grouped,
    )
    return output[..., :dimensions].transpose(1, 2).contiguous(), None


def _always_a_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Build the boolean mask that plain ``generate()`` needs; never the shortcut None, which drops the window."""
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **kwargs)


def register() -> str:
    """Make the implementation known to transformers; returns its name for ``attn_implementation``."""
    AttentionInterface.register(IMPLEMENTATION, masked_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _always_a_mask)
    return IMPLEMENTATION
