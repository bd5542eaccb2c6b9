"""A session that is told twice, late, in parts, too much or wrongly drafts what an undisturbed one does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import LOST, OK, OUT_OF_SYNC, LiveServer, graph_file, serving, step_of

TEXT = [random.Random(3).choice([1, 1, 2, 3, 5, 8, 13]) for _ in range(300)]
BUDGET, SEED = 7, 41


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, LiveServer]]:
    """Two that are told the same, but for what disturbs the first one."""
    folders: list[Path] = [tmp_path_factory.mktemp("server") for _ in range(2)]
    graph = graph_file(folders[0] / "graph.pkl", TEXT)
    with serving(graph, folders[0]) as disturbed, serving(graph, folders[1]) as undisturbed:
        yield disturbed, undisturbed


class Replay(RuleBasedStateMachine):
    def __init__(self, servers: tuple[LiveServer, LiveServer], strategy: pb.Strategy) -> None:
        super().__init__()
        self.disturbed, self.undisturbed = servers
        self.strategy = strategy
        self.position = 0
        self.ids: tuple[int, int] | None = None  # of the latest drafts

    def teardown(self) -> None:
        if hasattr(self, "first"):
            self.disturbed.close(self.first)
            self.undisturbed.close(self.second)

    def request(self, session_id: int, start: int, tokens: list[int], draft_id: int = 0) -> pb.DraftRequest:
        """Return a step, with a row of feedback if a draft is named."""
        request = step_of(session_id, tokens, start, BUDGET, self.strategy, SEED)
        if draft_id:
            request.feedback_draft_ids.append(draft_id)
            request.feedback_row_counts.append(1)
            request.feedback_nodes.append(0)
            request.feedback_width = 2
            request.feedback_tokens.extend([21, 22])
        return request

    def send(self, start: int, tokens: list[int], draft_id: int = 0) -> pb.DraftResponse:
        """Send a step to the disturbed session."""
        return self.disturbed.drafter.Draft(self.request(self.first, start, tokens, draft_id))

    def expect(self, answer: pb.DraftResponse, status: int) -> None:
        assert list(answer.sequence_statuses) == [status]
        assert list(answer.next_positions) == [self.position]
        if status != OK:
            assert list(answer.draft_lengths) == [0]

    def expect_draft(self, answer: pb.DraftResponse, start: int, draft_id: int = 0) -> None:
        """Compare with the draft of the session that is told what was new, and no more."""
        tokens = TEXT[start : self.position]
        expected = self.undisturbed.drafter.Draft(self.request(self.second, start, tokens, draft_id))
        self.expect(answer, OK)
        self.ids = (answer.draft_id, expected.draft_id)
        for each in (answer, expected):
            each.ClearField("draft_id")
            each.ClearField("server_time")
        assert answer == expected

    def reopen(self) -> None:
        self.position, self.ids = 0, None
        self.disturbed.open(self.first)
        self.undisturbed.close(self.second)
        self.undisturbed.open(self.second)

    @initialize()
    def open(self) -> None:
        self.first = self.disturbed.open()
        self.second = self.undisturbed.open()

    @rule(back=st.integers(0, 400), count=st.integers(0, 9))
    def goes_on(self, back: int, count: int) -> None:
        """What is new, and any of what was sent before: in order, overlapping, or all from the beginning."""
        start, before = max(self.position - back, 0), self.position
        end = min(before + count, len(TEXT))
        answer = self.send(start, TEXT[start:end])
        self.position = end
        self.expect_draft(answer, before)

    @rule(ahead=st.integers(1, 400), count=st.integers(0, 9))
    def leaves_a_gap(self, ahead: int, count: int) -> None:
        start = self.position + ahead
        self.expect(self.send(start, [1] * count), OUT_OF_SYNC)

    @precondition(lambda self: self.position > 0)
    @rule(data=st.data())
    def comes_late(self, data: st.DataObject) -> None:
        """An old step, of which everything was taken, and more after it."""
        start = data.draw(st.integers(0, self.position - 1))
        end = data.draw(st.integers(start, self.position - 1))
        self.expect(self.send(start, TEXT[start:end]), OUT_OF_SYNC)

    @precondition(lambda self: self.position > 0)
    @rule(data=st.data())
    def contradicts(self, data: st.DataObject) -> None:
        """Another token than was taken, in a step that may be old, or go on."""
        start = data.draw(st.integers(0, self.position - 1))
        end = data.draw(st.integers(start + 1, self.position + 3))
        wrong = data.draw(st.integers(start, min(end, self.position) - 1))
        tokens = TEXT[start:end]
        tokens[wrong - start] += data.draw(st.integers(1, 40))
        answer = self.send(start, tokens)
        self.position = 0
        self.expect(answer, LOST)
        self.expect(self.send(0, []), LOST)
        self.reopen()

    @precondition(lambda self: self.ids is not None and self.position < len(TEXT))
    @rule(count=st.integers(1, 5), times=st.integers(1, 3), is_other=st.booleans())
    def tells_of_a_draft(self, count: int, times: int, is_other: bool) -> None:
        """Rows of the latest draft are taken with what is new, once; those of another draft never."""
        assert self.ids is not None
        first_id, second_id = self.ids
        start, end = self.position, min(self.position + count, len(TEXT))
        self.position = end
        for turn in range(times):
            answer = self.send(start, TEXT[start:end], first_id + (1_000_000 if is_other else 0))
            self.expect_draft(answer, start if turn == 0 else end, 0 if is_other or turn else second_id)

    @rule()
    def opens_again(self) -> None:
        answer = self.disturbed.drafter.OpenSession(pb.OpenSessionRequest(session_id=self.first))
        assert answer.next_position == self.position

    @rule()
    def closes(self) -> None:
        self.disturbed.close(self.first)
        self.disturbed.close(self.first)
        self.position = 0
        self.expect(self.send(0, TEXT[:3]), LOST)
        self.reopen()


@pytest.mark.parametrize("strategy", [pb.STRATEGY_GREEDY, pb.STRATEGY_SAMPLING, pb.STRATEGY_TREE])
def test_a_disturbed_session_drafts_what_an_undisturbed_one_does(
    servers: tuple[LiveServer, LiveServer], strategy: pb.Strategy
) -> None:
    run_state_machine_as_test(
        lambda: Replay(servers, strategy), settings=settings(max_examples=12, stateful_step_count=25, deadline=None)
    )
