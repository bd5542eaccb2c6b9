"""Sessions of the sidecar: repeats, gaps, contradictions and evictions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_drafter.sessions import SessionStore, Taken
from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.messages import SequenceStatus

MAX_ORDER = 3
OK, LOST, OUT_OF_SYNC = SequenceStatus.OK, SequenceStatus.SESSION_LOST, SequenceStatus.OUT_OF_SYNC


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> SessionStore:
    return SessionStore(MAX_ORDER, max_sessions=2, idle_timeout_s=10.0, clock=clock)


def test_takes_tokens_and_keeps_the_longest_context(store: SessionStore) -> None:
    assert store.open(7) == 0
    assert store.take(7, 0, (1, 2)) == Taken(OK, 2, (1, 2), 2)
    assert store.take(7, 2, (3, 4, 5, 6)) == Taken(OK, 6, (4, 5, 6), 6)
    assert store.take(7, 6, ()) == Taken(OK, 6, (4, 5, 6), 6)
    assert store.position(7) == 6
    assert store.open(7) == 6


def test_a_gap_is_out_of_sync_and_takes_nothing(store: SessionStore) -> None:
    store.open(7)
    store.take(7, 0, (1, 2))
    assert store.take(7, 3, (4,)) == Taken(OUT_OF_SYNC, 2)
    assert store.take(7, 2, (3, 4)).next_position == 4


def test_unknown_and_closed_sessions_are_lost(store: SessionStore) -> None:
    assert store.take(7, 0, (1,)).status is LOST
    store.open(7)
    store.close(7)
    store.close(7)
    assert store.take(7, 0, (1,)).status is LOST


def test_a_contradiction_drops_the_session(store: SessionStore) -> None:
    store.open(7)
    store.take(7, 0, (1, 2, 3))
    assert store.take(7, 1, (2, 9, 4)).status is LOST
    assert store.open(7) == 0


def test_a_late_repeat_is_answered_from_what_is_known(store: SessionStore) -> None:
    store.open(7)
    store.take(7, 0, (1, 2, 3, 4, 5, 6))
    assert store.take(7, 0, (1, 2, 3, 4)) == Taken(OK, 6, (2, 3, 4), 4)
    assert store.take(7, 3, (4, 5)) == Taken(OUT_OF_SYNC, 6)
    assert store.position(7) == 6


def test_the_longest_idle_goes_first(store: SessionStore) -> None:
    store.open(1)
    store.open(2)
    store.take(1, 0, (5,))
    store.open(3)
    assert len(store) == 2
    assert store.take(2, 0, (5,)).status is LOST
    assert store.take(1, 1, (5,)).status is OK


def test_idle_sessions_are_lost(store: SessionStore, clock: Clock) -> None:
    store.open(1)
    store.open(2, idle_timeout_s=1.0)
    clock.now_s = 2.0
    assert store.take(2, 0, ()).status is LOST
    assert store.take(1, 0, ()).status is OK
    clock.now_s = 12.5
    store.open(3)
    assert len(store) == 1


def test_ids_are_not_shared_between_tenants(store: SessionStore) -> None:
    store.open(1, "a")
    with pytest.raises(DraftRequestError, match="choose another"):
        store.open(1, "b")
    store.close(1, "b")
    assert store.take(1, 0, (4,)).status is OK


@given(
    token_ids=st.lists(st.integers(0, 3), max_size=30).map(tuple),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12),
)
def test_any_repeats_give_the_context_of_an_undisturbed_session(
    token_ids: tuple[int, ...], steps: list[tuple[int, int]]
) -> None:
    store = SessionStore(MAX_ORDER, max_sessions=1, idle_timeout_s=1.0, clock=lambda: 0.0)
    store.open(1)
    position = 0
    for one, other in steps:
        start, end = sorted((min(one, len(token_ids)), min(other, len(token_ids))))
        taken = store.take(1, start, token_ids[start:end])
        if start > position:
            assert taken == Taken(OUT_OF_SYNC, position)
            continue
        if end >= position:
            position = end
            assert taken.status is OK
        if taken.status is OK:
            assert taken == Taken(OK, position, token_ids[max(end - MAX_ORDER, 0) : end], end)
