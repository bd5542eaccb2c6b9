"""Block masks, on a CPU: flex_attention without its compiler, which is slow but has the same meaning."""

from __future__ import annotations

import dataclasses

import pytest
from torch.nn.attention.flex_attention import flex_attention
from transformers.integrations.flex_attention import WrappedFlexAttention

from support.caching import TOLERANCE, Rows
from support.tiny_models import tiny_model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_trees_are_verified_with_block_masks(family, monkeypatch):
    target = tiny_model(family)
    monkeypatch.setattr(WrappedFlexAttention, "__init__", lambda *_: None)
    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda _: flex_attention)
    target.layout = dataclasses.replace(target.layout, mask_form="blocks")
    target.model.set_attn_implementation("flex_attention")
    rows = Rows(target, target.new_cache(3, widest_pass=16), family)
    rows.target = _Both(target, tiny_model(family))
    for row, length in enumerate([1, 20, 140]):
        rows.start(row, length, chunk=16)
    for _ in range(2):
        assert rows.verify([0, 1, 2], "tree", 9) < TOLERANCE
    placement = rows.cache._slot_layers[0].placement
    assert placement is not None
    assert placement.columns % 128 == 0, "every new shape is compiled"
    assert placement.slots.shape[1].bit_count() == 1


class _Both:
    """Verifies by one model and has the weights of another, whose fresh passes are the oracle."""

    def __init__(self, target, oracle) -> None:
        self.forward, self.prefill, self.model, self.device = (
            target.forward, target.prefill, oracle.model, target.device,
        )  # fmt: skip
