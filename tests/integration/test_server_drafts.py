"""Drafts over the wire are those of the drafter in this process: all strategies, by session and stateless."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import STRATEGIES, DraftOptions
from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import SequenceRequest, StepAnswer, StepRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, StrategyName
from support.server import LiveServer, refusal, serving, step_of

VOCABULARY_SIZE = 50
SETTINGS = {"max_branches": 4}


@pytest.fixture
def server(graph_path: Path, tmp_path: Path) -> Iterator[LiveServer]:
    with serving(graph_path, tmp_path, SETTINGS) as running:
        yield running


def exchanged(server: LiveServer, request: StepRequest) -> StepAnswer:
    message = pb.DraftRequest.FromString(convert.encode_step(None, request))
    return convert.decode_step_answer(
        server.drafter.Draft(message).SerializeToString(),
        budgets=[sequence.node_budget or 0 for sequence in request.sequences],
        strategy=request.options.strategy or "greedy",
        vocabulary_size=VOCABULARY_SIZE,
        is_enveloped=False,
    )


def wire_values(draft: Draft) -> object:
    """Return everything of a draft as exactly as it travels."""
    return (
        draft.token_ids,
        draft.parents,
        np.array(draft.path_probabilities, np.float32).tolist(),
        [(each.token_ids.tolist(), each.probabilities.tolist()) for each in draft.proposals],
        draft.terminated_early,
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stateless_sequences_draft_what_a_session_does(
    server: LiveServer, small_graph: NgramGraph, strategy: StrategyName
) -> None:
    local = SessionDrafter(small_graph, DraftConfig.model_validate(SETTINGS))
    generator = random.Random(strategy)
    options = DraftOptions(strategy)
    num_nodes = 0
    for number in range(8):
        texts = [[generator.randrange(VOCABULARY_SIZE) for _ in range(generator.randrange(0, 30))] for _ in range(4)]
        seeds = [generator.randrange(1 << 64) for _ in texts]
        answer = exchanged(
            server,
            StepRequest(
                tuple(SequenceRequest(tuple(text), None, 0, 7, seed) for text, seed in zip(texts, seeds, strict=True)),
                options,
            ),
        )
        for index, text in enumerate(texts):
            session_id = number * 10 + index
            local.open(session_id)
            local.accept(session_id, text)
            (expected,) = local.draft([DraftRequest(session_id, 7, seeds[index])], options)
            local.close(session_id)
            assert wire_values(answer.sequences[index].draft) == wire_values(expected)
            assert answer.sequences[index].next_position == 0
            num_nodes += len(expected)
    assert num_nodes > 0


def test_sampling_goes_by_the_position_that_is_told(server: LiveServer) -> None:
    text = [index % 7 for index in range(20)]

    def drafted(tokens: list[int], position: int) -> list[object]:
        answer = server.drafter.Draft(step_of(0, tokens, position, 8, pb.STRATEGY_SAMPLING, seed=5))
        return [list(answer.draft_tokens), list(answer.candidate_tokens), list(answer.candidate_probabilities)]

    assert drafted(text, 0) == drafted(text[-4:], 16)
    # A text that ends beyond the last position goes on from zero.
    assert drafted(text[-4:], (1 << 64) - 4) == drafted(text[-4:], (1 << 64) - 4)
    assert len({str(drafted(text[-4:], position)) for position in range(12)}) > 1


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"strategy": 99}, "UNIMPLEMENTED", "greedy, sampling, adaptive, tree, specexec"),
        ({"sources": 16}, "UNIMPLEMENTED", "sources"),
        ({"max_branches": 65}, "INVALID_ARGUMENT", "max_branches must be less than or equal to 64"),
        ({"min_path_probability": float("nan")}, "INVALID_ARGUMENT", "min_path_probability"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    server: LiveServer, fields: dict[str, object], code: str, said: str
) -> None:
    request = pb.DraftRequest(options=pb.StrategyOptions(**fields))
    error = refusal(server.drafter.Draft, request)
    assert (error.code().name, said in error.details()) == (code, True), error.details()
    (answer,) = server.drafter.StreamDraft(iter([pb.StreamDraftRequest(step_id=4, draft=request)]))
    assert (answer.step_id, answer.error.code, answer.error.message) == (4, error.code().value[0], error.details())
