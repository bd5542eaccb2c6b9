"""Top-p without a sort equals that of transformers, for any distribution and with ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TopPLogitsWarper

from speculant_verifier.sampling import top_tokens
from speculant_verifier.sampling.sampler import nucleus


def assert_same(scores, top_p):
    """Check that the same scores are kept, except where rounding decides at the border.

    transformers does not define which of several equal scores are kept, because its sort is not stable.
    """
    mine, theirs = nucleus(scores, top_p), TopPLogitsWarper(top_p)(None, scores[None])[0]
    kept = mine > -torch.inf
    assert torch.equal(mine[kept], scores[kept])
    values = scores.sort().values
    num_mine, num_theirs = int(kept.sum()), int((theirs > -torch.inf).sum())
    assert num_mine > 0
    assert torch.equal(mine[kept].sort().values, values[-num_mine:])
    fewer, more = sorted((num_mine, num_theirs))
    cumulative = values.softmax(-1).cumsum(-1)[len(values) - more : len(values) - fewer]
    assert all((cumulative - (1 - top_p)).abs() < 2e-6)


@given(
    st.lists(st.sampled_from([-torch.inf, -90.0, -3.0, -0.5, 0.0, 0.5, 1.0, 1.25, 20.0]), min_size=1, max_size=40),
    st.sampled_from([1e-12, 0.001, 0.25, 0.5, 0.75, 0.9, 0.95, 1 - 1e-6]),
)
def test_ties_gaps_and_masked_tokens(values, top_p):
    scores = torch.tensor(values)
    if scores.max() > -torch.inf:
        assert_same(scores, top_p)


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.3, 1.0, 3.0, 12.0])
def test_flat_and_peaky_distributions_of_a_large_vocabulary(scale, top_p):
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(8_000, generator=generator) * scale
        assert_same(scores, top_p)
        assert_same(scores.bfloat16().float(), top_p)  # many ties


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.5, 2), (0.75, 3), (0.76, 4)])
def test_a_share_that_is_exactly_reached_is_enough(top_p, kept):
    scores = torch.zeros(4)
    assert (nucleus(scores, top_p) > -torch.inf).sum() == kept
    assert (TopPLogitsWarper(top_p)(None, scores[None]) > -torch.inf).sum() == kept


@pytest.mark.parametrize("size", [1, 3, 63, 64, 65, 256, 300, 1_000, 4_097])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_they_are_the_first_of_a_sort(size, count):
    logits = torch.randn(3, 5, size, generator=torch.Generator().manual_seed(size))
    expected = np.argsort(-logits.numpy(), -1, kind="stable")[..., :count]
    assert top_tokens(logits, count).tolist() == expected.tolist()


def test_ties_and_impossible_tokens():
    logits = torch.full((1, 200), -torch.inf)
    logits[0, [10, 11, 150, 199]] = 2.0
    assert sorted(top_tokens(logits, 4)[0].tolist()) == [10, 11, 150, 199]
    assert set(top_tokens(logits.bfloat16(), 3)[0].tolist()) < {10, 11, 150, 199}
