"""A draft for one tenant never contains a token of another tenant's text, in any order of events."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from speculant_graph.draft.learning import learned_store
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import LOST, OK, LiveServer, graph_file, run_in_loop, serving, step_of

TENANTS = ("", "a", "b")
# The graph contains no tenant's text, and every tenant's text has its own tokens.
CORPUS = range(40, 50)
TOKENS = {"": range(10), "a": range(10, 20), "b": range(20, 30)}
STRATEGIES = st.sampled_from([pb.STRATEGY_TREE, pb.STRATEGY_ADAPTIVE])
FOLDERS = itertools.count()


class Walls(RuleBasedStateMachine):
    def __init__(self, graph: Path, folder: Path, seen: Counter[str]) -> None:
        super().__init__()
        self.graph = graph
        self.folder = folder / str(next(FOLDERS))
        self.folder.mkdir()
        self.seen = seen
        self.stack = ExitStack()
        self.start()

    def start(self) -> None:
        """Start a server with the text that the previous one learned."""
        self.server: LiveServer = self.stack.enter_context(
            serving(
                self.graph,
                self.folder,
                {"strategy": "tree"},
                learned=self.folder / "learned",
            )
        )
        self.sessions: dict[int, tuple[str, int]] = {}

    def teardown(self) -> None:
        self.stack.close()

    @initialize()
    def everybody_teaches(self) -> None:
        for tenant in TENANTS:
            session_id = self.server.open(tenant=tenant, learn=True)
            for position, tokens in ((0, [TOKENS[tenant][0]]), (1, [*TOKENS[tenant], *TOKENS[tenant]])):
                self.server.drafter.Draft(step_of(session_id, tokens, position))
            self.server.close(session_id, tenant)
        self.bait(TENANTS[-1], 0)

    @rule(tenant=st.sampled_from(TENANTS), learn=st.booleans())
    def opens(self, tenant: str, learn: bool) -> None:
        self.sessions[self.server.open(tenant=tenant, learn=learn)] = (tenant, 0)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), strategy=STRATEGIES, with_rows=st.booleans())
    def accepts(self, data: st.DataObject, strategy: pb.Strategy, with_rows: bool) -> None:
        """Accept a run of the tenant's tokens, which repeat, and target top-k rows of them."""
        session_id = data.draw(st.sampled_from(sorted(self.sessions)))
        tenant, position = self.sessions[session_id]
        own = TOKENS[tenant]
        start = data.draw(st.integers(0, 9))
        tokens = [own[(start + step) % 10] for step in range(data.draw(st.integers(0, 12)))]
        first = self.server.drafter.Draft(step_of(session_id, tokens, position, 16, strategy))
        self.look(first, tenant)
        position += len(tokens)
        request = step_of(session_id, [own[start]], position, 16, strategy)
        if with_rows:
            request.feedback_draft_ids.append(first.draft_id)
            request.feedback_row_counts.append(1)
            request.feedback_nodes.append(0)
            request.feedback_width = 3
            request.feedback_tokens.extend([own[(start + 5) % 10], own[(start + 6) % 10], own[start]])
        self.look(self.server.drafter.Draft(request), tenant)
        self.sessions[session_id] = (tenant, position + 1)

    def look(self, answer: pb.DraftResponse, tenant: str) -> None:
        assert list(answer.sequence_statuses) == [OK]
        assert set(answer.draft_tokens) <= {*CORPUS, *TOKENS[tenant]}

    @rule(tenant=st.sampled_from(TENANTS), start=st.integers(0, 9))
    def is_asked_with_the_text_of_another(self, tenant: str, start: int) -> None:
        self.bait(tenant, start)

    def bait(self, tenant: str, start: int) -> None:
        """Send another tenant's context, the best bait for its successors."""
        for other in TENANTS:
            session_id = self.server.open(tenant=tenant)
            bait = [TOKENS[other][(start + step) % 10] for step in range(4)]
            answer = self.server.drafter.Draft(step_of(session_id, bait, 0, 16, pb.STRATEGY_TREE))
            found = set(answer.draft_tokens)
            # A draft may repeat the tokens that the session itself sent.
            assert found <= {*CORPUS, *TOKENS[tenant], *bait}
            self.seen["learned"] += other == tenant and bool(found - set(CORPUS) - set(bait))
            self.server.close(session_id, tenant)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def closes(self, data: st.DataObject) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.sessions)))
        tenant, _ = self.sessions.pop(session_id)
        self.server.close(session_id, tenant)
        assert list(self.server.drafter.Draft(step_of(session_id)).sequence_statuses) == [LOST]

    @rule()
    def saves(self) -> None:
        run_in_loop(self.server.server._graphs.save())

    @rule()
    def reloads(self) -> None:
        self.server.admin.ReloadGraph(pb.ReloadGraphRequest())

    @rule()
    def restarts(self) -> None:
        self.server.stop()
        self.start()


@pytest.mark.parametrize(
    ("max_tenants", "num_examples"),
    [(1, 3), pytest.param(1, 40, marks=pytest.mark.faults), pytest.param(64, 40, marks=pytest.mark.faults)],
)
def test_tenants_never_meet(
    tmp_path: Path, max_tenants: int, num_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_store, "MAX_TENANTS", max_tenants)
    graph = graph_file(tmp_path / "graph.pkl", list(CORPUS) * 4)
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: Walls(graph, tmp_path, seen),
        settings=settings(max_examples=num_examples, stateful_step_count=20, deadline=None),
    )
    assert seen["learned"] > 0, "drafts from what the tenant itself had taught were looked at"
