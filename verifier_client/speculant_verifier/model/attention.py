"""Attention with arbitrary masks and gpt-oss's attention sinks, on CPU and GPU, without copying the KV cache.

A sink is a learned logit per head that takes part in the softmax but has no value vector. The fused kernels of torch
return the logarithm of the softmax denominator (LSE). The sink can therefore be applied after the kernel, as one factor
per query: ``sum / (sum + exp(sink)) = sigmoid(log(sum) - sink)``, where ``sum`` is the softmax denominator without the
sink. Query heads that share a KV head are "folded": they become additional queries of that head, so keys and values are
not repeated.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from loguru import logger
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from speculant_verifier.cache.pass_layout import hidden_score

IMPLEMENTATION = "speculant"
"""Name under which transformers knows this attention; gpt-oss rejects names that contain "sdpa"."""

_ALIGNED_COLUMNS = 16  # alignment of mask rows for the GPU's kernel
_LARGEST_ERROR = 0.05  # tolerance of the check on a GPU, whose kernels may round to bfloat16


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
    """Compute attention with an arbitrary mask; it is slower if gradients are required.

    Args:
        module: the attention layer (unused; part of the transformers interface).
        query: queries ``[batch, heads, T, d]``.
        key: keys ``[batch, kv_heads, L, d]``; the tensor may be a view whose last dimension is contiguous.
        value: values ``[batch, kv_heads, L, d]``; the tensor may be a view, like ``key``.
        attention_mask: mask ``[batch, 1, T, L]`` or, if folded, ``[batch, 1, heads / kv_heads * T, L]``: either bool
            (True = visible) or numbers to add to the logits. None = causal. If the keys are split into n parts, part i
            has every n-th key, starting at key i. With n parts, the folded mask is ``[batch, n * kv_heads, heads /
            kv_heads * T, L / n]``, ordered by part and then by head.
        scaling: factor of the logits; default ``d ** -0.5``.
        dropout: ignored.
        s_aux: sink logits ``[heads]`` or None.

    Returns:
        The attention output ``[batch, T, heads, d]``, and None in place of the attention weights.
    """
    batch, heads, length, dimensions = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    mask = _added(attention_mask, query, key)
    query = query.reshape(batch, kv_heads, groups, length, dimensions)
    sinks = None if s_aux is None else s_aux.float().view(1, kv_heads, groups, 1)
    if mask.shape[2] == groups * length or length == 1:
        folded_sinks = None if sinks is None else sinks.expand(-1, -1, -1, length).flatten(2)
        attend = _fused if mask.shape[1] == 1 else _fused_in_parts
        output = attend(query.flatten(2, 3), key, value, mask, scaling, folded_sinks)
        output = output.reshape(batch, heads, length, dimensions)  # GPU kernels put the heads last
    else:  # many queries: a call per group costs less than repeating the mask
        parts = [
            _fused(query[:, :, group], key, value, mask, scaling, None if sinks is None else sinks[:, :, group])
            for group in range(groups)
        ]
        output = torch.stack(parts, dim=2).reshape(batch, heads, length, dimensions)
    return output.transpose(1, 2).contiguous(), None


def _added(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """Return a mask as numbers to add to the logits."""
    length, columns = query.shape[2], key.shape[2]
    if mask is None:
        mask = torch.ones(length, columns, dtype=torch.bool, device=query.device).tril(columns - length)[None, None]
    if mask.dtype != torch.bool:
        return mask.to(query.dtype)
    return torch.where(mask, 0.0, hidden_score(query.dtype)).to(query.dtype)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None, sinks: Tensor | None
) -> Tensor:
    """Attend with equally many query heads and key heads; ``sinks`` broadcasts over ``[batch, kv_heads, queries]``."""
    if sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    if _want_gradients(query, key, value, mask, sinks):
        # The kernels below can't differentiate the LSE, so with gradients the sink is one more key with a zero value.
        scores = sinks[..., None].to(query.dtype).expand(*query.shape[:3], 1)
        mask = torch.cat([mask.expand(*query.shape[:3], -1), scores], -1)
        key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    output, logarithms = _with_logarithms(query, key, value, mask, scaling)
    return output * torch.sigmoid(logarithms - sinks)[..., None].to(output.dtype)


def _fused_in_parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None, sinks: Tensor | None
) -> Tensor:
    """Attend to keys in several parts, as the mask defines; the kernel treats the parts as separate heads."""
    heads = key.shape[1]
    num_parts = mask.shape[1] // heads
    key, value = (_parts_of(each, num_parts) for each in (key, value))
    output, logarithms = _with_logarithms(query.repeat(1, num_parts, 1, 1), key, value, mask, scaling)
    output, logarithms = (each.unflatten(1, (num_parts, heads)) for each in (output, logarithms))
    if sinks is not None:
        logarithms = torch.cat([logarithms, sinks[None].expand(len(logarithms), -1, -1, -1)], 1)
    shares = logarithms.softmax(1)[:, :num_parts, ..., None]
    summed: Tensor = (output * shares).sum(1)
    return summed.to(query.dtype)


def _parts_of(states: Tensor, num_parts: int) -> Tensor:
    """Split keys or values ``[batch, kv_heads, L, d]`` into ``[batch, n * kv_heads, L / n, d]``, on a GPU as a view."""
    batch, heads, length, size = states.shape
    parts = states.transpose(1, 2).reshape(batch, length // num_parts, num_parts * heads, size)
    return parts.transpose(1, 2)


def _with_logarithms(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Return the attention output ``[batch, heads, queries, d]`` and the log-sum-exp of every query in float32."""
    logarithms: Tensor
    output: Tensor
    if query.device.type == "cpu":
        output, logarithms = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scaling
        )
        return output, logarithms
    if missing := -mask.shape[-1] % _ALIGNED_COLUMNS:  # only with masks that transformers made
        mask = F.pad(mask, (0, missing))[..., : mask.shape[-1]]
    bias = mask.expand(query.shape[0], query.shape[1], query.shape[2], -1)
    output, logarithms, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, scale=scaling
    )
    return output, logarithms[:, :, : query.shape[2]]  # the kernel pads the queries


def _want_gradients(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def _always_a_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return a boolean mask for plain ``generate()``; without a mask (None), the sliding window would be lost."""
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **kwargs)


def register() -> str:
    """Register this attention with transformers; return its name for ``attn_implementation``."""
    AttentionInterface.register(IMPLEMENTATION, masked_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _always_a_mask)
    return IMPLEMENTATION


def use_attention(model: PreTrainedModel) -> bool:
    """Make a loaded model use the fused kernels, or its own slow attention if the kernels do not work.

    Returns:
        Whether masks must be repeated for query heads that share a KV head.
    """
    register()
    has_sinks = any(parameter.endswith(".sinks") for parameter, _ in model.named_parameters())
    problem = _problem_of_kernels(model) if has_sinks else ""
    if problem:
        logger.warning(
            "torch's fused attention does not work on '{}' ({}), using slow attention", model.device, problem
        )
    model.set_attn_implementation("eager" if problem else IMPLEMENTATION)
    return not problem


def attends_in_parts(model: PreTrainedModel) -> bool:
    """Return whether attention can split many keys into parts, which is faster and works on most GPUs."""
    return model.device.type != "cpu" and not _problem_of_kernels(model, num_parts=2)


@torch.inference_mode()
def _problem_of_kernels(model: PreTrainedModel, num_parts: int = 1) -> str:
    """Check the fused kernels once against a reference implementation, on the model's device and with its dtype.

    The fused kernels are not public functions of torch, so a torch release or a device may lack them.

    Returns:
        A description of the problem; empty if the kernels work.
    """
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(3, 2, 2, 32, 64, generator=generator).to(model.device, model.dtype)
    query, key, value = numbers[0, ..., :6, :], numbers[1], numbers[2]
    visible = (torch.rand(2, 1, 6, 32, generator=generator) < 0.5).to(model.device)
    visible[:, :, 0] = torch.arange(32, device=model.device) == 4  # and no key in the other parts
    sinks = torch.tensor([0.5, -1.0], device=model.device)
    logits = (query.float() @ key.float().transpose(2, 3) * 0.125).masked_fill(~visible, -torch.inf)
    logits = torch.cat([logits, sinks.view(1, 2, 1, 1).expand(2, 2, 6, 1)], -1)
    expected = logits.softmax(-1)[..., :-1] @ value.float()
    if num_parts > 1:
        visible = visible[:, 0].unflatten(2, (-1, num_parts)).permute(0, 3, 1, 2).repeat_interleave(2, 1)
    try:
        actual, _ = masked_attention(model, query, key, value, visible, 0.125, s_aux=sinks)
        error = float((actual.transpose(1, 2).float() - expected).abs().max())
    except (AttributeError, NotImplementedError, RuntimeError) as reason:
        return str(reason).strip().splitlines()[0]
    return "" if error < _LARGEST_ERROR else f"an error of {error:.2g}"
