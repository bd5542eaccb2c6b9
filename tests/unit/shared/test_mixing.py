"""The mixer's weights: the packaged weights, invalid weights, and reproducible training."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

from speculant_graph._core import NUM_MIXER_WEIGHTS, Calibration, mixer_losses, train_mixer
from speculant_graph.config import DraftConfig
from speculant_graph.draft.mixing import WEIGHTS_FILE, first_calibration, mixer_weights
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.types import SequenceStep
from support.graphs import graph_of


def recorded() -> Calibration:
    """Return tables that have recorded the positions of a text, and learned from them."""
    chance = np.random.default_rng(0)
    text = chance.integers(0, 12, 400).tolist()
    calibration = Calibration()
    calibration.records_examples = True
    drafter = SessionDrafter(graph_of([text], 3, 20), DraftConfig(strategy="tree"), calibration=calibration)
    drafter.open(0)
    drafter.accept(0, text[:50])
    drafter.accept(0, text[50:350])
    return calibration


def test_the_weights_of_the_package() -> None:
    weights = mixer_weights()
    assert weights.shape == (NUM_MIXER_WEIGHTS,)
    assert np.isfinite(weights).all()
    first_calibration()


def test_wheels_bring_them() -> None:
    """A wheel contains its packages' files, except those that git ignores."""
    root = Path(__file__).parents[3]
    build = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]["wheel"]
    where = WEIGHTS_FILE.relative_to(root).as_posix()
    assert any(where.startswith(f"{package}/") for package in build["packages"])
    assert "exclude" not in build
    ignored = subprocess.run(["git", "check-ignore", "--quiet", where], cwd=root, check=False)
    assert ignored.returncode == 1


@pytest.mark.hostile
@pytest.mark.parametrize("damage", [np.nan, np.inf, -1e30, 101.0])
def test_weights_that_are_none(damage: float) -> None:
    weights = mixer_weights().copy()
    for size in (0, NUM_MIXER_WEIGHTS - 1, NUM_MIXER_WEIGHTS + 1):
        with pytest.raises(ValueError):  # noqa: PT011 - of the core
            Calibration(np.resize(weights, size))
    weights[-1] = damage
    with pytest.raises(ValueError):  # noqa: PT011
        Calibration(weights)


def test_training_repeats_itself_and_learns() -> None:
    tables = [recorded(), recorded()]
    weights = train_mixer(tables, 1, 5, 0.02)
    np.testing.assert_array_equal(weights, train_mixer(tables, 1, 5, 0.02))
    assert not np.array_equal(weights, train_mixer(tables, 2, 5, 0.02))
    before, after = mixer_losses(weights, tables[0])
    assert after < before
    assert mixer_losses(weights, Calibration()) == [0.0, 0.0]


def test_siblings_are_a_distribution() -> None:
    chance = np.random.default_rng(1)
    text = chance.integers(0, 6, 600).tolist()
    drafter = SessionDrafter(
        graph_of([text], 3, 20),
        DraftConfig(strategy="tree", max_branches=64),
        calibration=Calibration(chance.normal(0, 0.5, NUM_MIXER_WEIGHTS).astype(np.float32)),
    )
    for place in range(100, 200):  # prompts only: they teach nothing about paths, which are calibrated separately
        drafter.open(place)
        drafter.accept(place, text[:place])
        [draft] = drafter.draft([SequenceStep(place, (), 40)])
        below = [0.0] * (len(draft) + 1)
        for parent, probability in zip(draft.parents, draft.path_probabilities, strict=True):
            below[parent] += probability
        assert all(sum_ <= whole * 1.001 for sum_, whole in zip(below, (1.0, *draft.path_probabilities), strict=True))
