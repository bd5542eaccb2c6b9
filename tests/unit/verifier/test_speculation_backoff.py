"""Drafts that take longer than they save are left, tried again ever more rarely, and taken up when they pay."""

from __future__ import annotations

import pytest

from speculant_verifier.speculation.backoff import SpeculationBackoff


def play(backoff, steps, gain, *, first=0):
    """Return at which of the steps was drafted; a step brings ``gain`` tokens a plain pass."""
    drafted = []
    for step in range(first, first + steps):
        if backoff.allows(step):
            drafted.append(step)
            backoff.observe(step, gain * 1.5, 1.2, 0.3)
    return drafted


def test_what_pays_goes_on():
    assert play(SpeculationBackoff(), 500, 1.01) == list(range(500))


def test_what_does_not_pay_is_tried_ever_more_rarely():
    drafted = play(SpeculationBackoff(), 10_000, 0.9)
    assert drafted[:12] == list(range(12))
    assert drafted[12] == 12 + 32
    assert len(drafted) < 250
    assert max(drafted) > 9_000 - 1_024


@pytest.mark.parametrize("bad", [50, 3_000])
def test_what_pays_again_is_taken_up(bad):
    backoff = SpeculationBackoff()
    play(backoff, bad, 0.5)
    drafted = play(backoff, 3_000, 1.3, first=bad)
    assert drafted[-1_500:] == list(range(bad + 1_500, bad + 3_000))
    again = play(backoff, 200, 0.2, first=bad + 3_000)
    assert 12 <= len(again) < 60  # the first pause is a short one again


def test_the_time_of_drafting_counts():
    backoff = SpeculationBackoff()
    for step in range(12):
        backoff.observe(step, 1.5, 1.2, 0.31)
    assert not backoff.allows(12)
