"""Learning across sessions: whose text is learned, which part of it, and its storage."""

from __future__ import annotations

import gc
import io
from pathlib import Path

import numpy as np
import pytest

from speculant_graph._core import Calibration
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning import learned_store as store_module
from speculant_graph.draft.learning.learned_store import LearnedStore, load_calibration, save_calibration
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.types import SequenceStep
from support.graphs import graph_of
from support.learned import TOKENIZER, opened
from support.sessions import draft_of, drafter_of, started, values_of

CORPUS = np.random.default_rng(0).integers(0, 12, 600).tolist()


def test_tenants_do_not_see_each_other() -> None:
    graph = graph_of([CORPUS], 4, 100)
    secret = [60, 61, 62, 63, 64, 65, 66, 67]
    states: list[tuple[object, object]] = []
    for learn in (True, False):
        drafter = drafter_of(graph)
        started(drafter, 1, [1], tenant="a", learn=learn)
        drafter.recycle(1, [0], [[70, 71]])
        drafter.accept(1, secret * 3)
        drafter.close(1)
        drafts = [started(drafter, number, secret[:4], tenant=tenant) for number, tenant in enumerate("ba", start=2)]
        assert (drafts[1].token_ids[:1] == (64,)) == learn
        drafter.accept(2, [1])
        states.append((values_of(drafts[0]), values_of(draft_of(drafter, 2))))
    assert states[0] == states[1]
    assert not set(draft_of(drafter, 2).token_ids) & {70, 71}


def test_learning_is_for_those_who_asked() -> None:
    for settings, learn in (({}, False), ({"max_learned_tokens": 0}, True), ({"sources": ["session"]}, True)):
        drafter = drafter_of(**settings)
        started(drafter, 1, [9], learn=learn)
        drafter.accept(1, [1, 2, 3, 4])
        drafter.close(1)
        assert started(drafter, 2, [1, 2]).token_ids == ()


def store_of(folder: Path) -> LearnedStore:
    return LearnedStore(1_000, folder, TOKENIZER)


def test_what_was_learned_outlives_the_process(tmp_path: Path) -> None:
    with store_of(tmp_path) as store:
        drafter = drafter_of(learned=store)
        started(drafter, 1, [9], tenant="a", learn=True)
        drafter.accept(1, [1, 2, 3, 4, 1, 2, 3, 4])
        drafter.close(1)
        before = started(drafter, 2, [1, 2], tenant="a")
        drafter.save()
        saved = save_calibration(drafter.calibration)
    assert before.token_ids[:2] == (3, 4)
    with store_of(tmp_path) as store:
        drafter = drafter_of(learned=store)
        assert save_calibration(drafter.calibration) == saved
        assert values_of(started(drafter, 1, [1, 2], tenant="a")) == values_of(before)
        assert started(drafter, 2, [1, 2], tenant="b").token_ids == ()
        drafter.open(3, tenant="a", learn=True)
        drafter.accept(3, [9])
        drafter.accept(3, [1, 2, 3, 4])
        store.forget("a")
        drafter.close(3)
        assert started(drafter, 4, [1, 2], tenant="a").token_ids == (), "not even what was open"
        drafter.save()
        assert [path.name for path in tmp_path.glob("*.sqlite")] == ["shared.sqlite"]
    with store_of(tmp_path) as store:
        assert started(drafter_of(learned=store), 4, [1, 2], tenant="a").token_ids == ()


def test_tenants_that_are_away_leave_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def teach(drafter: SessionDrafter) -> None:
        for number, tenant in enumerate("abc"):
            started(drafter, number, [9], tenant=tenant, learn=True)
            drafter.accept(number, [1, 2, 3, 4])
        for number in range(3):
            drafter.close(number)
            started(drafter, 10 + number, [8], tenant="abc"[number], learn=True)
            drafter.accept(10 + number, [1, 2, 3, 4])
            drafter.close(10 + number)

    def known(drafter: SessionDrafter) -> list[bool]:
        return [bool(started(drafter, 20 + number, [1, 2], tenant=tenant)) for number, tenant in enumerate("cba")]

    monkeypatch.setattr(store_module, "MAX_TENANTS", 2)
    drafter = drafter_of()
    teach(drafter)
    gc.collect()
    assert known(drafter) == [True, True, False]
    monkeypatch.setattr(store_module, "MAX_TENANTS", 1)
    with store_of(tmp_path) as store:
        drafter = drafter_of(learned=store)
        teach(drafter)
        assert known(drafter) == [True] * 3
    with pytest.raises(ConfigError):
        drafter.open(99, tenant="d")


def test_damaged_calibration_is_made_anew(tmp_path: Path, warnings: list[str]) -> None:
    with opened(tmp_path) as files:
        files.save_state(None, "calibration", b"damaged")
    with store_of(tmp_path) as store:
        drafter = drafter_of(learned=store)
        assert np.array_equal(drafter.calibration.weights, Calibration().weights)
        assert started(drafter, 1, [1, 2, 1]).token_ids
    assert any("calibration is damaged" in message for message in warnings)


@pytest.mark.parametrize("damage", ["cut", "shape", "more hits than visits", "not a number", "huge"])
def test_damaged_tables(damage: str) -> None:
    calibration = Calibration()
    agreements = calibration.bins
    agreements[5] = (3.0, 1.0, 2.0)
    calibration.restore(calibration.weights, agreements)
    whole = save_calibration(calibration)
    assert np.array_equal(load_calibration(whole).bins, agreements)
    rows = {
        "more hits than visits": (3.0, 1.0, 4.0),
        "not a number": (3.0, np.nan, 1.0),
        "huge": (1e10, 1e10 + 5, 0.0),
    }
    agreements[5] = rows.get(damage, agreements[5])
    calibration.restore(calibration.weights, agreements)
    buffer = io.BytesIO()
    np.savez(buffer, format=1, escapes=calibration.weights, agreements=agreements[:-1])
    saved = {"cut": whole[:-9], "shape": buffer.getvalue()}.get(damage, save_calibration(calibration))
    with pytest.raises(ConfigError):
        load_calibration(saved)


def test_kinds_of_contexts_stay_where_saved_tables_have_them() -> None:
    """The kinds of a second graph follow the kinds of the six sources; a new source must not move them."""
    text = np.random.default_rng(1).integers(0, 12, 100).tolist()
    drafter = SessionDrafter([graph_of([CORPUS], 4, 100), graph_of([text], 4, 100)], DraftConfig(strategy="tree"))
    drafter.open(1)
    drafter.accept(1, text[:3])
    drafter.draft([SequenceStep(1, text[:3], 4)])
    drafter.accept(1, text[3:])
    changed = (drafter.calibration.weights != Calibration().weights).any(axis=1).reshape(-1, 11 * 6 * 3).any(axis=1)
    session, corpus, further, others = changed[0], changed[1], changed[6], changed[7:]
    assert session
    assert corpus
    assert further
    assert not others.any()


def test_tables_of_fewer_kinds_are_read() -> None:
    calibration = Calibration()
    weights = calibration.weights + 1.0
    buffer = io.BytesIO()
    np.savez(buffer, format=1, escapes=weights[:990], agreements=calibration.bins)
    read = load_calibration(buffer.getvalue()).weights
    assert np.array_equal(read[:990], weights[:990])
    assert np.array_equal(read[990:], calibration.weights[990:])


def test_learned_text_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    graph = graph_of([CORPUS], 4, 100)
    with LearnedStore(1_000, tmp_path, TOKENIZER) as store, pytest.raises(TokenizerMismatchError):
        SessionDrafter(graph, learned=store)
    with LearnedStore(1_000, tmp_path / "same", graph.metadata.tokenizer) as store:
        SessionDrafter(graph, learned=store)
