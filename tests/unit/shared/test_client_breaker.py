"""The breaker, with a clock in the test's hands."""

from __future__ import annotations

import pytest

from speculant_graph.client.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(failures_before_pause=3, pause_s=0.1, clock=clock)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        assert breaker.allows()
        breaker.failed()


def test_opens_after_failures_in_a_row_only(breaker: Breaker) -> None:
    fail(breaker, 2)
    breaker.succeeded()
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"
    assert not breaker.allows()


def test_lets_one_try_through_after_the_pause(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s += 0.09
    assert not breaker.allows()
    clock.now_s += 0.02
    assert breaker.allows()
    assert breaker.state == "half-open"
    assert not breaker.allows()


def test_a_failed_try_begins_another_pause(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s += 0.2
    fail(breaker, 1)
    assert breaker.state == "open"
    assert not breaker.allows()
    clock.now_s += 0.2
    assert breaker.allows()


def test_a_successful_try_closes(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s += 0.2
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.state == "closed"
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_a_try_without_outcome_does_not_block_for_ever(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s += 0.2
    assert breaker.allows()
    clock.now_s += 0.2
    assert breaker.allows()
