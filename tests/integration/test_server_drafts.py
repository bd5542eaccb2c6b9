"""Drafts over the wire are those of the drafter in this process: all strategies, by session and stateless."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.config import DraftConfig
from speculant_graph.draft.cost import CostCurve
from speculant_graph.draft.options import STRATEGIES, DraftOptions
from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import SequenceRequest, SequenceStatus, StepAnswer, StepRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, Feedback, StrategyName
from support.server import LiveServer, code_of, refusal, serving, step_of

VOCABULARY_SIZE = 50
SETTINGS = {"max_branches": 4}
CURVE = CostCurve((1, 4, 16), (1.0, 1.25, 3.0))  # exact in the single precision of the wire


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


class Twins:
    """The same sequences at a server and at a drafter of ours, which are told the same."""

    def __init__(self, server: LiveServer, graph: NgramGraph, strategy: StrategyName) -> None:
        self.server = server
        self.local = SessionDrafter(graph, DraftConfig.model_validate(SETTINGS))
        self.options = DraftOptions(strategy)
        self.random = random.Random(strategy)
        self.texts: dict[int, list[int]] = {}
        self.sent: dict[int, int] = {}
        self.drafts: dict[int, list[Draft]] = {}
        self.num_nodes = self.num_rows = self.num_ignored = 0

    def open(self, session_id: int, *, learn: bool = False, cost: CostCurve | None = None) -> None:
        """Open a sequence on both sides."""
        request = pb.OpenSessionRequest(session_id=session_id, learn=learn)
        if cost is not None:
            request.verify_cost.tokens.extend(cost.tokens)
            request.verify_cost.relative_costs.extend(cost.relative)
        self.server.drafter.OpenSession(request)
        self.local.open(session_id, learn=learn, cost=cost)
        self.texts[session_id], self.sent[session_id], self.drafts[session_id] = [], 0, []

    def close(self, session_id: int) -> None:
        """Close a sequence on both sides."""
        self.server.close(session_id)
        self.local.close(session_id)
        del self.texts[session_id]

    def step(self) -> None:
        """Accept something in every sequence, and compare what is drafted next."""
        sequences, orders = [], []
        for session_id, text in self.texts.items():
            feedback = self._feedback(session_id)
            if self.drafts[session_id]:
                latest = self.drafts[session_id][-1]
                text.extend(latest.token_ids[: self.random.randrange(4)])
            text.extend(self.random.randrange(VOCABULARY_SIZE) for _ in range(self.random.randrange(1, 6)))
            start, self.sent[session_id] = self.sent[session_id], len(text)
            budget, seed = self.random.randrange(0, 14), self.random.randrange(1 << 64)
            self.local.accept(session_id, text[start:])
            sequences.append(SequenceRequest(tuple(text[start:]), session_id, start, budget, seed, feedback))
            orders.append(DraftRequest(session_id, budget, seed))
        answer = exchanged(self.server, StepRequest(tuple(sequences), self.options))
        for sequence, order, expected in zip(
            answer.sequences, orders, self.local.draft(orders, self.options), strict=True
        ):
            assert sequence.status is SequenceStatus.OK
            assert sequence.next_position == len(self.texts[order.session_id])
            assert wire_values(sequence.draft) == wire_values(expected)
            self.drafts[order.session_id].append(sequence.draft)
            self.num_nodes += len(sequence.draft)

    def _feedback(self, session_id: int) -> Feedback | None:
        """Rows of the latest draft, which the drafter here is told as well, or of an older one, which none may mind."""
        drafts = self.drafts[session_id]
        if not drafts or self.random.random() < 0.3:
            return None
        is_late = len(drafts) > 1 and self.random.random() < 0.3
        draft = drafts[-2] if is_late else drafts[-1]
        nodes = sorted(self.random.sample(range(len(draft) + 1), self.random.randrange(1, len(draft) + 2)))
        rows = np.array([[self.random.randrange(-1, VOCABULARY_SIZE) for _ in range(5)] for _ in nodes], np.int64)
        if is_late:
            self.num_ignored += 1
        else:
            self.num_rows += len(nodes)
            self.local.recycle(session_id, nodes, rows)
        # The id is that of the answer, which the decoded draft carries.
        return Feedback(draft.draft_id, nodes, rows)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sessions_draft_what_a_drafter_here_does(
    server: LiveServer, small_graph: NgramGraph, strategy: StrategyName
) -> None:
    twins = Twins(server, small_graph, strategy)
    twins.open(1, cost=CURVE)
    twins.open(2, learn=True)
    twins.open(1 << 63)
    for _ in range(12):
        twins.step()
    twins.close(2)
    twins.open(3, learn=True, cost=CURVE)
    for _ in range(6):
        twins.step()
    assert min(twins.num_nodes, twins.num_rows, 5 * twins.num_ignored) > 10


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


OPTIONS = [
    {"min_path_probability": 0.2},
    {"omit_proposals": True},
    {"max_depth": 2, "max_branches": 2},
    {"siblings": "without-replacement", "temperature": 0.3, "max_candidates": 3},
    {"siblings": "independent"},
    {"siblings": "independent", "omit_proposals": True},
    {"sources": frozenset(["session"])},
    {"sources": frozenset()},
]
"""What a client of ours can't ask for by its settings, and combinations."""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_options_are_those_of_the_drafter(server: LiveServer, small_graph: NgramGraph, strategy: StrategyName) -> None:
    local = SessionDrafter(small_graph, DraftConfig.model_validate(SETTINGS))
    tokens = next([token] * 3 for token in range(VOCABULARY_SIZE) if small_graph.match([token]))
    seen = set()
    for number, fields in enumerate([{}, *OPTIONS], start=1):
        options = DraftOptions(strategy, **fields)
        for drafter_open in (local.open, server.open):
            drafter_open(number)
        local.accept(number, tokens)
        (expected,) = local.draft([DraftRequest(number, 12, 3)], options)
        answer = exchanged(server, StepRequest((SequenceRequest(tuple(tokens), number, 0, 12, 3),), options))
        assert wire_values(answer.sequences[0].draft) == wire_values(expected)
        seen.add(str(wire_values(expected)))
    assert len(seen) > 1 or strategy in ("greedy", "adaptive"), "options change something"


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"strategy": 99}, "UNIMPLEMENTED", "greedy, sampling, adaptive, tree, specexec"),
        ({"coupling": 9}, "UNIMPLEMENTED", "coupling"),
        ({"siblings": 9}, "UNIMPLEMENTED", "siblings"),
        ({"sources": 16}, "UNIMPLEMENTED", "sources"),
        ({"strategy": 5}, "UNIMPLEMENTED", "strategy 5"),
        ({"max_branches": 65}, "INVALID_ARGUMENT", "max_branches must be less than or equal to 64"),
        ({"max_depth": 256}, "INVALID_ARGUMENT", "max_depth"),
        ({"temperature": -1.0}, "INVALID_ARGUMENT", "temperature"),
        ({"temperature": float("nan")}, "INVALID_ARGUMENT", "temperature"),
        ({"min_path_probability": float("nan")}, "INVALID_ARGUMENT", "min_path_probability"),
        ({"min_path_probability": 1.5}, "INVALID_ARGUMENT", "min_path_probability"),
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


def test_feedback_of_nodes_that_are_not_there_is_refused_and_harmless(server: LiveServer) -> None:
    session_id = server.open()
    answer = server.drafter.Draft(step_of(session_id, [1, 2, 3], strategy=pb.STRATEGY_TREE))
    rows = {"feedback_draft_ids": [answer.draft_id], "feedback_row_counts": [1], "feedback_width": 1}
    wrong = step_of(session_id, [4], 3, feedback_nodes=[99], feedback_tokens=[4], **rows)
    assert code_of(server.drafter.Draft, wrong).name == "INVALID_ARGUMENT"
    right = step_of(session_id, [4], 3, feedback_nodes=[0], feedback_tokens=[4], **rows)
    answer = server.drafter.Draft(right)
    assert (list(answer.sequence_statuses), list(answer.next_positions)) == ([pb.SEQUENCE_STATUS_OK], [4])


def test_sequences_of_a_batch_do_not_touch_each_other(server: LiveServer) -> None:
    tokens = [index % 7 for index in range(9)]
    alone = [
        server.drafter.Draft(step_of(0, tokens[:size], 0, budget, pb.STRATEGY_TREE))
        for size, budget in ((1, 3), (9, 8), (4, 0))
    ]
    together = server.drafter.Draft(
        pb.DraftRequest(
            session_ids=[0, 77, 0, 0],
            context_lengths=[1, 2, 9, 4],
            context_tokens=[*tokens[:1], 5, 5, *tokens, *tokens[:4]],
            node_budgets=[3, 5, 8, 0],
            options=pb.StrategyOptions(strategy=pb.STRATEGY_TREE),
        )
    )
    assert list(together.sequence_statuses) == [1, pb.SEQUENCE_STATUS_SESSION_LOST, 1, 1]
    lengths = [answer.draft_lengths[0] for answer in alone]
    assert list(together.draft_lengths) == [lengths[0], 0, lengths[1], lengths[2]]
    for name in ("draft_tokens", "draft_parents", "draft_path_probabilities"):
        assert list(getattr(together, name)) == [value for answer in alone for value in getattr(answer, name)]
