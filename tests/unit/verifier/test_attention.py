from __future__ import annotations

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from speculant_verifier.attention import masked_attention


@pytest.mark.parametrize(("length", "past"), [(1, 0), (1, 30), (7, 30), (9, 0)])
def test_equals_gpt_oss_eager_attention_under_any_mask(length, past):
    torch.manual_seed(1)
    heads, kv_heads, dimensions, batch = 6, 2, 32, 3
    module = torch.nn.Module()
    module.num_key_value_groups = heads // kv_heads
    module.sinks = torch.nn.Parameter(torch.randn(heads) * 2)
    query = torch.randn(batch, heads, length, dimensions)
    key, value = torch.randn(2, batch, kv_heads, past + length, dimensions)
    mask = torch.rand(batch, 1, length, past + length) < 0.6
    mask[..., torch.arange(length), past + torch.arange(length)] = True
    scaling = dimensions**-0.5
    floats = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected, _ = eager_attention_forward(module, query, key, value, floats, scaling)
        actual, _ = masked_attention(module, query, key, value, mask, scaling, s_aux=module.sinks)
        without_sinks, _ = masked_attention(module, query, key, value, mask, scaling)
    assert torch.allclose(actual, expected, atol=2e-6)
    assert not torch.allclose(without_sinks, expected, atol=1e-3), "the sinks must matter for this test to mean much"


def test_plain_generate_of_transformers_works_with_the_implementation(gpt_oss):
    prompt = torch.tensor([[5, 6, 7, 8]])
    gpt_oss.model.set_attn_implementation("eager")
    eager = gpt_oss.model.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None)
    gpt_oss.model.set_attn_implementation("speculant")
    ours = gpt_oss.model.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None)
    assert ours.tolist() == eager.tolist()
