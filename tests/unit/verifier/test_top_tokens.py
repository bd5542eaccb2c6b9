"""The most probable tokens are those of a sort, whatever the size of the vocabulary."""

import numpy as np
import pytest
import torch

from speculant_verifier.sampling import top_tokens


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
