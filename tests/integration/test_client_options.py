"""A client's ``draft`` options have the same effect at a sidecar as in process, or are refused by name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph.client import DrafterClient, LocalDrafter
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.draft.options import REQUEST_OPTIONS
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.strategies import NGRAM_STRATEGIES
from speculant_graph.types import EMPTY_DRAFT, Draft, DraftOptions, Feedback, SequenceStep
from support.graphs import with_model
from support.neural_reference import random_words
from support.server import LiveServer, serving

VOCABULARY_SIZE = 50
SIDECAR: dict[str, Any] = {
    "strategy": "specexec", "max_candidates": 2, "temperature": 3.0,
    "sources": ["session"], "max_depth": 2, "max_branches": 2,
}  # fmt: skip
"""Settings of the sidecar, which differ from all requested ones."""
EVERYTHING: dict[str, Any] = {
    "max_candidates": 0, "temperature": 0.6,
    "sources": ["corpus", "recycled"],
    "max_depth": 9, "max_branches": 64,
}  # fmt: skip
"""All request options except the strategy, with values unlike the sidecar's, and zero where allowed."""
WORKLOADS: dict[str, dict[str, Any]] = {
    "max_candidates": {"strategy": "sampling"},
    "temperature": {"strategy": "sampling"},
    "sources": {"strategy": "tree"},
    "max_depth": {"strategy": "specexec"},
    "max_branches": {"strategy": "specexec", "sources": ["corpus"]},
}
"""Settings under which each option has an effect."""


@pytest.fixture
def server(graph_path: Path, tmp_path: Path) -> Iterator[LiveServer]:
    with serving(graph_path, tmp_path, SIDECAR) as running:  # a new one for each test, because it learns
        yield running


def client_of(server: LiveServer, config: DraftConfig) -> DrafterClient:
    settings = ClientConfig(address=server.address, deadline_ms=5_000)
    return DrafterClient(settings, tokenizer=None, draft=config, strict=True)


def drafted(drafter: DrafterClient | LocalDrafter, **requested: Any) -> list[list[Draft]]:
    """Return the drafts of a few sequences, which also get feedback."""
    generator = random.Random(3)
    texts = [[generator.randrange(VOCABULARY_SIZE) for _ in range(30)] for _ in range(4)]
    for number in range(len(texts)):
        drafter.open(number + 1)
    options, told = DraftOptions(**requested), list[list[Draft]]()
    for _ in range(6):
        latest = told[-1] if told else [EMPTY_DRAFT] * len(texts)
        steps = [
            SequenceStep(number, list(text), 12, seed=7 * number, feedback=_feedback(draft, text), options=options)
            for number, (text, draft) in enumerate(zip(texts, latest, strict=True), start=1)
        ]
        told.append(drafter.draft(steps))
        for text in texts:
            text += [generator.randrange(6) for _ in range(3)]  # a small range, so that tokens with rows recur
    assert drafter.statistics.failed_steps == 0, drafter.statistics.last_failure
    for number in range(len(texts)):
        drafter.finish(number + 1)
    return told


def _feedback(draft: Draft, text: list[int]) -> Feedback:
    rows = np.array([[(text[-1] + index * index) % VOCABULARY_SIZE for index in range(5)]], np.int64)
    return Feedback(draft.draft_id, [0], rows)


def values_of(told: list[list[Draft]]) -> list[object]:
    return [
        (
            draft.token_ids,
            draft.parents,
            np.array(draft.path_probabilities, np.float32).tolist(),
            [(each.token_ids.tolist(), each.probabilities.tolist()) for each in draft.proposals],
            draft.strategy,
        )
        for drafts in told
        for draft in drafts
    ]


def in_process(graph: NgramGraph, config: DraftConfig, **requested: Any) -> list[object]:
    return values_of(drafted(LocalDrafter(graph, config), **requested))


def over_the_wire(server: LiveServer, config: DraftConfig, **requested: Any) -> list[object]:
    with client_of(server, config) as client:
        return values_of(drafted(client, **requested))


def as_the_sidecar(requested: dict[str, Any]) -> DraftConfig:
    return DraftConfig.model_validate(SIDECAR | requested)


def test_every_setting_is_requested_or_the_sidecars() -> None:
    of_nasd = {"n", "filler_top_k", "stop_if_unknown"}  # NASD drafts in the verifier
    assert {*REQUEST_OPTIONS, "k", "max_learned_tokens", *of_nasd} == set(DraftConfig.model_fields)
    assert set(REQUEST_OPTIONS) == {"strategy", *WORKLOADS} == {"strategy", *EVERYTHING}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_requested_option_is_served(server: LiveServer, small_graph: NgramGraph, name: str) -> None:
    """Set options are the client's, unset options the sidecar's."""
    workload = WORKLOADS[name]
    requested = workload | {name: EVERYTHING[name]}
    served = over_the_wire(server, DraftConfig.model_validate(requested))
    assert served == in_process(small_graph, as_the_sidecar(requested))
    # A control: without the option, the drafts differ.
    without = {other: value for other, value in requested.items() if other != name}
    assert served != in_process(small_graph, as_the_sidecar(without))


@pytest.mark.parametrize("strategy", NGRAM_STRATEGIES)
def test_all_options_together(server: LiveServer, small_graph: NgramGraph, strategy: str) -> None:
    config = DraftConfig.model_validate(EVERYTHING | {"strategy": strategy})
    assert over_the_wire(server, config) == in_process(small_graph, config)


def test_options_of_a_step(server: LiveServer, small_graph: NgramGraph) -> None:
    drawing = DraftConfig.model_validate(EVERYTHING | {"strategy": "sampling"})
    colder = over_the_wire(server, drawing, temperature=0.2, siblings="without-replacement", max_depth=3)
    assert colder == in_process(small_graph, drawing, temperature=0.2, siblings="without-replacement", max_depth=3)
    assert colder != in_process(small_graph, drawing, siblings="without-replacement", max_depth=3)
    assert colder != in_process(small_graph, drawing, temperature=0.2, siblings="without-replacement")
    greedy = over_the_wire(server, drawing, strategy="greedy")
    assert greedy == in_process(small_graph, drawing, strategy="greedy") != in_process(small_graph, drawing)
    coupled = over_the_wire(server, drawing, coupling="gumbel")
    assert coupled == in_process(small_graph, drawing, coupling="gumbel") != in_process(small_graph, drawing)


def test_the_neural_model_is_left_out_and_counted(small_graph: NgramGraph, tmp_path: Path) -> None:
    """The other sources stay as the sidecar sets them."""
    words = random_words(np.random.default_rng(6), [*range(VOCABULARY_SIZE)], VOCABULARY_SIZE)  # with many proposals
    graph = with_model(small_graph, words)
    graph.save(tmp_path / "neural.pkl")
    sources = ["corpus", "neural"]
    used, left_out = (DraftConfig(strategy="tree", sources=each) for each in (sources, ["corpus"]))
    for omits, moved in ((False, 0), (True, 24)):
        with serving(tmp_path / "neural.pkl", tmp_path, {"sources": sources}) as server:
            served = over_the_wire(server, DraftConfig(strategy="tree"), omit_neural=omits)
            assert server.metrics()["without_neural_total"] == moved
        assert served == in_process(graph, used, omit_neural=omits)
        assert (served == in_process(graph, left_out)) is omits


def test_what_is_the_sidecars_is_refused_by_name(server: LiveServer) -> None:
    with pytest.raises(ConfigError) as caught:
        client_of(server, DraftConfig(max_learned_tokens=300))
    assert caught.value.field == "draft.max_learned_tokens"
    client_of(server, DraftConfig(max_learned_tokens=1_000_000)).close()
