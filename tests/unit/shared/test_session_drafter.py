"""Sessions: life cycle, every strategy, unknown tokens, budgets, threads and memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from speculant_graph._core import Calibration
from speculant_graph.config import DraftConfig
from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import NGRAM_STRATEGIES, STRATEGIES, StrategyName
from speculant_graph.types import Draft, DraftOptions, SequenceStep
from support.graphs import graph_of
from support.sessions import draft_of, drafter_of, started, values_of

VOCABULARY_SIZE = 100
CORPUS = np.random.default_rng(0).integers(0, 12, 600).tolist()


@pytest.fixture(scope="module")
def graph() -> NgramGraph:
    return graph_of([CORPUS], 4, VOCABULARY_SIZE)


def test_the_life_of_a_session() -> None:
    drafter = drafter_of()
    assert len(drafter) == 0
    drafter.open(7)
    assert len(drafter) == 1
    assert draft_of(drafter, 7).token_ids == ()
    drafter.accept(7, [1, 2, 3])
    drafter.accept(7, np.array([1, 2]))
    assert draft_of(drafter, 7).token_ids[:2] == (3, 1)
    drafter.accept(7, [])
    assert draft_of(drafter, 7).token_ids[:2] == (3, 1)
    drafter.close(7)
    assert len(drafter) == 0
    drafter.close(7)
    assert started(drafter, 7, [2]).token_ids == (), "nothing is left of the session before"


def test_a_step_brings_what_is_new_or_nothing(graph: NgramGraph) -> None:
    told, shown = drafter_of(graph), drafter_of(graph)
    for number, drafter in ((0, told), (7, shown)):
        drafter.open(number)
        drafter.accept(number, CORPUS[:50])
    known = 50
    for end in (50, 51, 51, 60):
        told.accept(0, CORPUS[known:end])
        known = end
        [draft] = shown.draft([SequenceStep(7, CORPUS[:end], 8)], draft_id=end)
        assert draft.draft_id == end
        assert draft.token_ids
    # Tokens of a step are learned when its drafts are made, so before the next drafts.
    for options in (DraftOptions("greedy"), DraftOptions("tree")):
        drafts = [
            drafter.draft([SequenceStep(number, (), 8)] * 2, options) for number, drafter in ((0, told), (7, shown))
        ]
        assert values_of(drafts[0][0]) == values_of(drafts[0][1])
        # Drafts calibrate path probabilities, and only one drafter has made drafts. So only probabilities differ.
        assert values_of(drafts[0][0])[:2] == values_of(drafts[1][0])[:2]
    assert told.draft([DraftRequest(0, 8)])[0].token_ids == drafts[0][0].token_ids
    for refused in (SequenceStep(9, (), 8), SequenceStep(9, [1], 8)):
        with pytest.raises(DraftRequestError):
            told.draft([refused])


def test_rows_of_nodes_that_are_not_there() -> None:
    drafter = drafter_of()
    size = len(started(drafter, 1, [1, 2, 1, 2, 1]))
    assert size
    for node in (-1, size + 1):
        with pytest.raises(DraftRequestError):
            drafter.recycle(1, [0, node], [[1], [2]])
    with pytest.raises(DraftRequestError):
        drafter.recycle(1, [0], [[1], [2]])
    drafter.recycle(1, [0, size], [[1], [2]])
    drafter.accept(1, [2])
    with pytest.raises(DraftRequestError):
        drafter.recycle(1, [1], [[3]])


def test_strategies_that_there_are_not(graph: NgramGraph) -> None:
    with pytest.raises(ConfigError) as caught:
        SessionDrafter(None, DraftConfig(strategy="greedy"))
    assert caught.value.field == "draft.strategy"
    with pytest.raises(ConfigError) as caught:
        drafter_of(graph, sources=[])
    assert caught.value.field == "draft.sources"


@pytest.mark.parametrize("strategy", NGRAM_STRATEGIES)
@pytest.mark.parametrize("configured", ["greedy", "tree"])
def test_every_strategy(graph: NgramGraph, strategy: StrategyName, configured: StrategyName) -> None:
    drafter = drafter_of(graph, strategy=configured, max_depth=5)
    drafter.open(1)
    drafter.accept(1, CORPUS[:90])
    for start in range(90, 110):
        draft = draft_of(drafter, 1, 8, strategy)
        assert draft.strategy == strategy
        assert 0 < len(draft) <= 8
        assert values_of(draft) == values_of(draft_of(drafter, 1, 8, strategy)), "drafting changes nothing"
        assert bool(draft.path_probabilities) == STRATEGIES[strategy].is_calibrated
        assert len(draft.proposals) == (len(draft) if strategy == "sampling" else 0)
        assert draft.is_chain or strategy in {"tree", "specexec"}
        assert draft_of(drafter, 1, 0, strategy) == draft_of(drafter, 1, -3, strategy) == Draft(strategy=strategy)
        if configured == strategy:
            assert values_of(draft) == values_of(draft_of(drafter, 1, 8))
        drafter.accept(1, CORPUS[start : start + 1])
    learned = not np.array_equal(drafter.calibration.weights, Calibration().weights)
    assert learned == STRATEGIES[strategy].is_calibrated, "whatever is configured: a session learns as it drafts"


@pytest.mark.parametrize("foreign", [-1, -(2**40), VOCABULARY_SIZE, 2**21, 2**31])
def test_foreign_tokens_end_what_is_known(graph: NgramGraph, foreign: int) -> None:
    drafter = drafter_of(graph)
    drafter.open(1, learn=True)
    drafter.accept(1, [1, 2, foreign])
    for strategy in NGRAM_STRATEGIES:
        assert draft_of(drafter, 1, strategy=strategy).token_ids == (), strategy
    drafter.accept(1, [50, 51, foreign, 52, 50])
    tokens = draft_of(drafter, 1, 1, "adaptive").token_ids
    assert tokens == (51,)
    for strategy in NGRAM_STRATEGIES:
        assert foreign not in draft_of(drafter, 1, strategy=strategy).token_ids
    drafter.close(1)
    assert started(drafter, 2, [50, 51]).token_ids == ()


@pytest.mark.parametrize("token_ids", [5, "12", ["1"], None, [1.5], [1, None], [[1], [2]], [[1], 2], [2**70]])
def test_what_is_no_list_of_tokens_is_refused(token_ids: Any) -> None:
    drafter = drafter_of()
    drafter.open(1)
    with pytest.raises(DraftRequestError):
        drafter.accept(1, token_ids)
    drafter.accept(1, [])
    drafter.accept(1, np.array([4, 5, 4], np.uint64))
    assert draft_of(drafter, 1).token_ids[0] == 5


def test_threads_that_learn_from_each_other(graph: NgramGraph) -> None:
    drafter = drafter_of(graph)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(12):
                drafter.open(number, learn=True)
                for start in range(0, 100, 10):
                    drafter.accept(number, CORPUS[start * number : start * number + 10])
                    draft = draft_of(drafter, number, 12)
                    assert all(0 <= token < 12 for token in draft.token_ids)
                    drafter.recycle(number, [0, len(draft)], [[1, 2, 3], [turn % 12, -1, -1]])
                drafter.close(number)
        except BaseException as error:
            failures.append(error)

    run(work)
    assert not failures
    assert len(drafter) == 0


def run(work: Any) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_memory_is_bounded() -> None:
    drafter = drafter_of(max_session_tokens=256, max_learned_tokens=300)
    drafter.open(1, learn=True)
    for _ in range(100):
        drafter.accept(1, CORPUS[:26])
    assert drafter.num_bytes(1) < 256 * 28 + 5_000
    assert started(drafter, 2, [*range(1_000, 1_300), 1_000]).token_ids == (), "what is forgotten is not found"
    assert started(drafter, 3, [*range(1_000, 1_255), 1_000]).token_ids[:1] == (1_001,)
    for number in range(10, 20):
        started(drafter, number, [1], learn=True)
        drafter.accept(number, CORPUS[:200])
        drafter.close(number)
    assert drafter.learned.num_tokens == 300


def test_budgets_beyond_the_largest() -> None:
    drafter = drafter_of(max_branches=64, max_depth=200)
    text = np.random.default_rng(1).integers(0, 40, 3_000)
    drafter.open(1)
    drafter.accept(1, text)
    assert len(draft_of(drafter, 1, 10**9)) == 2_048
