from __future__ import annotations

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from speculant_verifier import attention
from speculant_verifier.attention import masked_attention
from support.tiny_models import WINDOW, tiny_gpt_oss, tiny_model

HEADS, KV_HEADS, BATCH = 6, 2, 3


def inputs(length: int, past: int, dimensions: int = 32, dtype: torch.dtype = torch.float32):
    torch.manual_seed(1)
    module = torch.nn.Module()
    module.num_key_value_groups = HEADS // KV_HEADS
    module.sinks = torch.nn.Parameter((torch.randn(HEADS) * 2).to(dtype))
    query = torch.randn(BATCH, HEADS, length, dimensions).to(dtype)
    # As the cache hands them out: a view of larger buffers.
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
    """Against the same numbers in float64; the model's own attention is the yardstick."""
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


def test_nothing_of_the_past_is_copied(monkeypatch):
    """The kernels get views into the cache's own buffers."""
    target = tiny_gpt_oss()
    cache = target.new_cache(2, 64, widest_pass=4)
    target.prefill([[1, 2, 3], [4, 5]], cache, [0, 1])
    buffers = [layer.keys.data_ptr() for layer in cache._slot_layers]
    seen = []
    fused = attention._fused
    monkeypatch.setattr(attention, "_fused", lambda q, k, *rest: (seen.append(k.data_ptr()), fused(q, k, *rest))[1])
    target.forward([[7], [8]], cache, [0, 1])
    assert seen == buffers


@pytest.mark.parametrize("family", ["gpt_oss", "mistral", "qwen2"])
def test_plain_generate_of_transformers_works_with_the_implementation(family):
    """Past the window, for a batch with padding on the left."""
    target = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    prompt = torch.tensor([[257, 257, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6]])
    seen = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    texts = []
    for name in ("eager", "speculant"):
        target.model.set_attn_implementation(name)
        texts.append(
            target.model.generate(
                prompt, attention_mask=seen, max_new_tokens=2 * WINDOW, do_sample=False, eos_token_id=None,
                pad_token_id=257,
            ).tolist()
        )  # fmt: skip
    assert texts[0] == texts[1]


def test_kernels_that_compute_something_else_are_noticed_before_they_are_used(monkeypatch):
    assert tiny_gpt_oss().layout.folds_masks
    for fake in (lambda q, *_: q, lambda *_: torch.ops.aten.no_such_kernel()):
        monkeypatch.setattr(attention, "_fused", fake)
        target = tiny_gpt_oss()
        assert not target.layout.folds_masks
        assert target.model.config._attn_implementation == "eager"


@pytest.mark.parametrize(("length", "columns", "rows"), [(1, 33, 1), (9, 48, 72), (9, 41, 9), (100, 128, 100)])
def test_shapes_on_a_gpu(length, columns, rows):
    """Without one: the kernels for other devices than CPUs are asked for shapes only."""
    query = torch.empty(2, 64, length, 64, dtype=torch.bfloat16, device="meta")
    key = torch.empty(2, 8, 256, 64, dtype=torch.bfloat16, device="meta")[:, :, :columns]
    mask = torch.empty(2, 1, rows, columns, dtype=torch.bfloat16, device="meta")
    sinks = torch.empty(64, dtype=torch.bfloat16, device="meta")
    output, _ = masked_attention(torch.nn.Module(), query, key, key, mask, 0.125, s_aux=sinks)
    assert (output.shape, output.dtype) == ((2, length, 64, 64), torch.bfloat16)


@pytest.mark.parametrize("form", [lambda m: m, lambda m: folded(lowest(m))])
@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize("length", [1, 9])
def test_gradients_equal_those_of_eager_attention(length, sinks, form):
    module, query, key, value, mask = inputs(length, 30)
    if not sinks:
        module.sinks = torch.nn.Parameter(torch.full((HEADS,), -1e4))
    wanted = [each.requires_grad_() for each in (query, key.detach(), value.detach(), module.sinks)]
    query, key, value, _ = wanted
    weights = torch.randn(BATCH, length, HEADS, 32)
    expected, _ = eager_attention_forward(module, query, key, value, lowest(mask), 0.2)
    expected = torch.autograd.grad((expected * weights).sum(), wanted)
    aux = module.sinks if sinks else None
    actual, _ = masked_attention(module, query, key, value, form(mask), 0.2, s_aux=aux)
    actual = torch.autograd.grad((actual * weights).sum(), wanted[: 3 + sinks])
    for ours, own in zip(actual, expected[: 3 + sinks], strict=True):
        assert torch.allclose(ours, own, atol=1e-5, rtol=1e-5)


def gradients(target, name):
    target.model.set_attn_implementation(name)
    parameters = dict(target.model.named_parameters())
    tokens = torch.arange(3 * 3 * WINDOW).reshape(3, -1) * 37 % 250
    loss = target.model(tokens, labels=tokens, use_cache=False).loss
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def worst(actual, expected):
    """The largest error of any parameter's gradient, in shares of the gradient's own length."""
    return max(float((actual[name] - own).norm() / own.norm()) for name, own in expected.items() if own.norm() > 1e-6)


@pytest.mark.parametrize("family", ["gpt_oss", "mistral", "qwen2", "llama"])
def test_a_models_gradients_equal_those_of_eager_attention(family):
    """Layers with and without a window, with and without sinks, past the window."""
    target = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    assert worst(gradients(target, "speculant"), gradients(target, "eager")) < 1e-4


def test_gradients_through_the_fused_kernels_would_be_wrong(monkeypatch):
    target = tiny_gpt_oss()
    expected = gradients(target, "eager")
    monkeypatch.setattr(attention, "_want_gradients", lambda *_: False)
    assert worst(gradients(target, "speculant"), expected) > 0.05
