from __future__ import annotations

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from speculant_verifier.model import attention
from speculant_verifier.model.attention import masked_attention
from support.caching import TOLERANCE, Rows
from support.tiny_models import tiny_gpt_oss

HEADS, KV_HEADS, BATCH = 6, 2, 3


def inputs(length: int, past: int, dimensions: int = 32, dtype: torch.dtype = torch.float32):
    torch.manual_seed(1)
    module = torch.nn.Module()
    module.num_key_value_groups = HEADS // KV_HEADS
    module.sinks = torch.nn.Parameter((torch.randn(HEADS) * 2).to(dtype))
    query = torch.randn(BATCH, HEADS, length, dimensions).to(dtype)
    # A view of larger buffers, as from the cache.
    key, value = torch.randn(2, BATCH, KV_HEADS, past + length + 9, dimensions).to(dtype)[..., : past + length, :]
    mask = torch.rand(BATCH, 1, length, past + length) < 0.6
    mask[..., torch.arange(length), past + torch.arange(length)] = True
    return module, query, key, value, mask


def lowest(mask: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)


def folded(mask: torch.Tensor) -> torch.Tensor:
    return mask.repeat(1, 1, HEADS // KV_HEADS, 1)


@pytest.mark.parametrize("form", [lambda m: m, lowest, folded, lambda m: folded(lowest(m))])
@pytest.mark.parametrize(("length", "past"), [(1, 0), (1, 30), (7, 30), (9, 0)])
def test_equals_gpt_oss_eager_attention_under_any_mask(length, past, form):
    module, query, key, value, mask = inputs(length, past)
    scaling = 0.2
    with torch.no_grad():
        expected, _ = eager_attention_forward(module, query, key, value, lowest(mask), scaling)
        actual, _ = masked_attention(module, query, key, value, form(mask), scaling, s_aux=module.sinks)
        without_sinks, _ = masked_attention(module, query, key, value, form(mask), scaling)
    assert torch.allclose(actual, expected, atol=2e-6)
    assert not torch.allclose(without_sinks, expected, atol=1e-3), "the sinks must matter for this test to mean much"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sinks", [True, False])
def test_half_precision_is_as_exact_as_the_models_own(dtype, sinks):
    """Both are compared with attention in float64; our error is at most slightly larger than the model's own."""
    module, query, key, value, mask = inputs(9, 200, 64, dtype)
    if not sinks:
        module.sinks = torch.nn.Parameter(torch.full((HEADS,), -1e4, dtype=dtype))
    exact = torch.nn.Module()
    exact.num_key_value_groups, exact.sinks = HEADS // KV_HEADS, torch.nn.Parameter(module.sinks.double())
    with torch.no_grad():
        truth, _ = eager_attention_forward(
            exact,
            query.double(),
            key.double(),
            value.double(),
            torch.zeros(mask.shape).double().masked_fill(~mask, -1e300),
            0.125,
        )
        own, _ = eager_attention_forward(module, query, key, value, lowest(mask, dtype), 0.125)
        ours, _ = masked_attention(
            module, query, key, value, folded(lowest(mask, dtype)), 0.125, s_aux=module.sinks if sinks else None
        )
    assert ours.dtype == dtype
    assert (ours - truth).abs().max() <= 1.5 * (own - truth).abs().max()
    assert (ours - truth).abs().mean() <= 1.1 * (own - truth).abs().mean()


def test_a_query_that_sees_nothing_is_no_nan():
    module, query, key, value, mask = inputs(4, 8)
    mask[0, 0, 1] = False
    for sinks in (module.sinks.detach(), None):
        output, _ = masked_attention(module, query, key, value, mask, 0.2, s_aux=sinks)
        assert output.isfinite().all()
    output, _ = masked_attention(module, query, key, value, mask, 0.2, s_aux=module.sinks.detach())
    assert (output[0, 1] == 0).all()


def test_kernels_that_compute_something_else_are_noticed_before_they_are_used(monkeypatch):
    assert tiny_gpt_oss().layout.folds_masks
    for fake in (lambda q, *_: q, lambda *_: torch.ops.aten.no_such_kernel()):
        monkeypatch.setattr(attention, "_fused", fake)
        target = tiny_gpt_oss()
        assert not target.layout.folds_masks
        assert target.model.config._attn_implementation == "eager"
    rows = Rows(target, target.new_cache(3), 0)
    for row, length in enumerate([1, 20, 70]):
        rows.start(row, length)
    assert rows.verify([0, 1, 2]) < TOLERANCE
