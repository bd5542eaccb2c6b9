"""Drafts over the wire are those of the drafter in this process: all strategies, by session and stateless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import LiveServer, refusal, serving, step_of

VOCABULARY_SIZE = 50
SETTINGS = {"max_branches": 4}


@pytest.fixture
def server(graph_path: Path, tmp_path: Path) -> Iterator[LiveServer]:
    with serving(graph_path, tmp_path, SETTINGS) as running:
        yield running


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
