"""The table of strategies agrees with the names, the wire, the core, the documentation and actual drafts."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from speculant_graph._core import methods
from speculant_graph.config import DraftConfig
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import ConfigError
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.strategies import NGRAM_STRATEGIES, READ_BY, STRATEGIES, NgramStrategyName, StrategyName
from speculant_graph.types import Draft, SequenceStep
from support.graphs import graph_of
from support.pages import read_page
from support.sessions import started
from support.strategy_table import with_table

GRAPH = graph_of([np.random.default_rng(0).integers(0, 6, 600).tolist()], 4, 100)


def drafted(name: NgramStrategyName) -> Draft:
    return started(SessionDrafter(GRAPH, DraftConfig(strategy=name)), 1, [1, 2, 3])


def test_every_name_has_a_record() -> None:
    assert set(STRATEGIES) == set(get_args(StrategyName))
    assert all(each.chain is None or not STRATEGIES[each.chain].makes_trees for each in STRATEGIES.values())
    assert READ_BY.keys() <= DraftConfig.model_fields.keys()


def test_numbers_are_those_of_the_wire() -> None:
    on_wire = {name.removeprefix("STRATEGY_").lower(): number for name, number in pb.Strategy.items() if number}
    assert on_wire == {name: each.number for name, each in STRATEGIES.items() if each.number}
    assert set(on_wire) == set(NGRAM_STRATEGIES)


def test_methods_are_those_of_the_core() -> None:
    used = {STRATEGIES[name].runs_by for name in NGRAM_STRATEGIES}
    assert used == set(methods())
    assert not any(each.runs_by in methods() for each in STRATEGIES.values() if not each.number)


@pytest.mark.parametrize("name", NGRAM_STRATEGIES)
def test_drafts_are_as_their_record_says(name: NgramStrategyName) -> None:
    record, draft = STRATEGIES[name], drafted(name)
    assert draft.strategy == name
    assert draft.is_chain != record.makes_trees
    assert bool(draft.path_probabilities) == record.is_calibrated
    assert bool(draft.proposals) == record.has_proposals


@pytest.mark.parametrize("name", NGRAM_STRATEGIES)
def test_only_what_fills_its_budget_ignores_a_least_probability(name: NgramStrategyName) -> None:
    drafter = SessionDrafter(GRAPH, DraftConfig(strategy=name))
    whole = started(drafter, 1, [1, 2, 3])
    [likely] = drafter.draft([SequenceStep(1, (), 8, 0, least_probability=0.3)])
    ignores = STRATEGIES[name].fills_budget or not STRATEGIES[name].is_calibrated
    assert (len(likely) == len(whole)) == ignores


@pytest.mark.parametrize("name", NGRAM_STRATEGIES)
def test_what_needs_a_graph_is_refused_without_one(name: NgramStrategyName) -> None:
    if STRATEGIES[name].needs_graph:
        with pytest.raises(ConfigError):
            SessionDrafter(None, DraftConfig(strategy=name))
    else:
        assert SessionDrafter(None, DraftConfig(strategy=name)).config.strategy == name


def test_the_page_has_the_table() -> None:
    page = read_page("docs/drafting.md")
    assert with_table(page) == page, "run 'make tables'"
