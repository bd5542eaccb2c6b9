"""Steps that a kernel answers are those that Python answers, whatever the order of steps."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_drafter.counts import ServerCounts
from speculant_drafter.graphs import GraphRegistry
from speculant_drafter.sessions import SessionStore
from speculant_drafter.steps import StepAnswerer
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc import convert
from speculant_graph.rpc.kernels.step import answer_step
from speculant_graph.rpc.messages import SequenceRequest, StepOptions, StepRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.serving.access import EVERYBODY, Principal
from speculant_graph.types import Feedback
from support.graphs import graph_of

VOCABULARY_SIZE = 12
CORPUS = [(place * place + place // 3) % VOCABULARY_SIZE for place in range(700)]


class Server:
    """Sessions and steps without sockets."""

    def __init__(self, path: Path, is_compiled: bool, draft: DraftConfig | None = None, **settings: Any) -> None:
        config = ServerConfig(graph=path, max_nodes=64, **settings)
        draft = draft or DraftConfig(k=4)
        self.counts = ServerCounts()
        self.graphs = GraphRegistry(config, draft)
        asyncio.run(self.graphs.load_configured())
        self.sessions = SessionStore(config, self.counts, time.monotonic)
        self.steps = StepAnswerer(config, draft, self.graphs, self.sessions, self.counts)
        self.steps.warm_up()
        self.num_usual = 0
        usual = self.steps._usual.answer

        def answer(*arguments: Any, **named: Any) -> bytes | None:
            answered = usual(*arguments, **named) if is_compiled else None
            self.num_usual += answered is not None
            return answered

        self.steps._usual.answer = answer  # type: ignore[method-assign] # to see which way was taken

    def open(self, session_id: int) -> None:
        self.sessions.open(session_id, self.graphs.get(""))

    def step(self, request: StepRequest, principal: Principal = EVERYBODY) -> pb.StreamDraftResponse:
        response = self.send(convert.encode_stream_step(9, request), principal)
        assert response is not None
        return response

    def send(self, payload: bytes, principal: Principal = EVERYBODY) -> pb.StreamDraftResponse | None:
        try:
            response = pb.StreamDraftResponse.FromString(self.steps.answer_enveloped(payload, principal))
        except DraftRequestError:
            return None
        if response.HasField("draft"):  # clearing a field of a draft that is not there would make one
            response.draft.ClearField("server_time")
            response.draft.ClearField("draft_id")
        return response

    def position(self, session_id: int) -> int:
        session = self.sessions.look_at(session_id)
        assert session is not None
        return session.position

    def close(self) -> None:
        self.sessions.end_all()


@pytest.fixture(scope="module")
def make_servers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[Server, Server]]:
    path = tmp_path_factory.mktemp("graph") / "graph.pkl"
    graph_of([CORPUS], 4, VOCABULARY_SIZE).save(path)
    servers = Server(path, True), Server(path, False)
    return lambda: servers


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "sequences": st.lists(
                st.tuples(
                    st.integers(1, 3),  # session
                    st.lists(st.integers(0, VOCABULARY_SIZE + 1), max_size=5),
                    st.sampled_from([0, 0, 0, 0, 0, -1, 1, -3]),  # distance from where it stands
                    st.integers(0, 6),  # budget
                    st.integers(0, 2**64 - 1),  # seed
                ),
                min_size=1,
                max_size=3,
                unique_by=lambda sequence: sequence[0],
            ),
            "options": st.builds(
                StepOptions,
                strategy=st.sampled_from([None, "greedy", "sampling", "sampling", "tree"]),
                max_candidates=st.integers(0, 3),
                omit_proposals=st.booleans(),
                mixing=st.sampled_from([None, None, None, "attention"]),
                coupling=st.sampled_from([None, "none", "gumbel"]),
                siblings=st.sampled_from(["none", "none", "none", "without-replacement", "independent"]),
            ),
            "has_budgets": st.booleans(),
            "has_feedback": st.sampled_from([False, False, False, True]),
        }
    ),
    max_size=8,
)


@given(STEPS)
def test_any_steps(make_servers: Callable[[], tuple[Server, Server]], steps: list[dict[str, Any]]) -> None:
    servers = make_servers()
    answers: list[list[Any]] = [[], []]
    compiled, plain = (server.graphs.get("").drafter.calibration.arrays for server in servers)
    for array, learned in zip(plain, compiled, strict=True):
        array[:] = learned  # trees are drafted by what was learned before
    for server, given_answers in zip(servers, answers, strict=True):
        server.counts.drafted_nodes = 0
        for session_id in (1, 2, 3):
            server.open(session_id)
        for step in steps:
            sequences = []
            for session_id, tokens, distance, budget, seed in step["sequences"]:
                session = server.sessions.look_at(session_id)
                position = max((session.position if session else 0) + distance, 0)
                feedback = Feedback(1, [0], np.array([[1, 2]])) if step["has_feedback"] else None
                given_budget = budget if step["has_budgets"] else None
                sequences.append(SequenceRequest(tuple(tokens), session_id, position, given_budget, seed, feedback))
            given_answers.append(server.step(StepRequest(tuple(sequences), step["options"])))
        given_answers.append([server.sessions.look_at(number) is None for number in (1, 2, 3)])
        given_answers.append(server.counts.drafted_nodes)
        server.close()
    assert [without_generations(each) for each in answers[0]] == [without_generations(each) for each in answers[1]]


def without_generations(answer: Any) -> Any:
    if isinstance(answer, pb.StreamDraftResponse) and answer.HasField("draft"):
        answer.draft.ClearField("graph_generation")
        del answer.draft.sequence_generations[:]
    return answer


def chain_step(session_id: int, position: int, tokens: list[int], strategy: Any = "sampling") -> StepRequest:
    return StepRequest(
        (SequenceRequest(tuple(tokens), session_id, position, 5, 7),), StepOptions(strategy=strategy, max_candidates=2)
    )


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCABULARY_SIZE), max_size=4),
            st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
        ),
        max_size=5,
    )
)
def test_mutated_messages(
    make_servers: Callable[[], tuple[Server, Server]], steps: list[tuple[list[int], list[tuple[int, int]]]]
) -> None:
    servers = make_servers()
    for server in servers:
        for session_id in (1, 2):
            server.open(session_id)
            server.step(chain_step(session_id, 0, CORPUS[:10]))
    try:
        for tokens, mutations in steps:
            sessions = [servers[0].sessions.look_at(session_id) for session_id in (1, 2)]
            sequences = [
                SequenceRequest(tuple(tokens), number, session.position, 3, number)
                for number, session in enumerate(sessions, start=1)
                if session is not None
            ]
            request = StepRequest(tuple(sequences), StepOptions("sampling", 2))
            payload = bytearray(convert.encode_stream_step(9, request))
            for place, value in mutations:
                payload[place % len(payload)] = value
            answers = [without_generations(server.send(bytes(payload))) for server in servers]
            assert answers[0] == answers[1]
    finally:
        for server in servers:
            server.close()


def test_what_is_usual_is_answered_by_the_kernel(make_servers: Callable[[], tuple[Server, Server]]) -> None:
    server, _ = make_servers()
    server.open(2**64 - 5)
    before = server.num_usual, server.counts.steps
    position = 0
    for tokens in (CORPUS[:10], CORPUS[10:12], [], CORPUS[12:600], CORPUS[600:601]):
        server.step(chain_step(2**64 - 5, position, tokens))
        position += len(tokens)
    # The prompt, and tokens for which there is no room yet, go through Python.
    assert (server.num_usual - before[0], server.counts.steps - before[1]) == (3, 5)
    session = server.sessions.look_at(2**64 - 5)
    assert session is not None
    assert (session.position, session.num_steps) == (601, 5)
    assert len(answer_step.signatures) == 1, "what was compiled before the first step is what steps need"
    assert session.num_drafted > 0
    server.close()


def test_other_strategies_and_feedback_take_a_session_from_the_kernel_for_good(
    make_servers: Callable[[], tuple[Server, Server]],
) -> None:
    server, _ = make_servers()
    for session_id, watch in ((1, "tree"), (2, "feedback")):
        server.open(session_id)
        server.step(chain_step(session_id, 0, CORPUS[:10]))
        server.step(chain_step(session_id, 10, CORPUS[10:12]))
        before = server.num_usual
        if watch == "tree":
            server.step(chain_step(session_id, 12, [], "tree"))
        else:
            rows = Feedback(1, [0], np.array([[3]]))
            server.step(StepRequest((SequenceRequest((2,), session_id, 12, 5, feedback=rows),), StepOptions("greedy")))
        position = server.position(session_id)
        server.step(chain_step(session_id, position, [3]))
        server.step(chain_step(session_id, position + 1, [4]))
        assert server.num_usual == before
    server.close()


def test_a_step_that_fails_half_way_leaves_nothing_behind(make_servers: Callable[[], tuple[Server, Server]]) -> None:
    answers = []
    for server in make_servers():
        for session_id in (1, 2):
            server.open(session_id)
            server.step(chain_step(session_id, 0, CORPUS[:10]))
            server.step(chain_step(session_id, 10, []))
        session = server.sessions.look_at(2)
        assert session is not None
        bad = Feedback(session.offered_id, [99], np.array([[1]]))
        # The first sequence grows out of its room before the second one fails.
        sequences = SequenceRequest(tuple(CORPUS[10:600]), 1, 10, 5), SequenceRequest((3,), 2, 10, 5, feedback=bad)
        assert session.offered_id > 0
        assert server.step(StepRequest(sequences, StepOptions("greedy"))).HasField("error")
        after: list[Any] = [server.step(chain_step(1, start, CORPUS[start : start + 3])) for start in (600, 603)]
        # As many tokens are there as the client was told, and they are its own.
        drafter = server.graphs.get("").drafter
        answers.append(
            [*after, drafter.agrees(1, 600, np.array(CORPUS[600:606])) and len(drafter._find(1).history) == 606]
        )
        server.close()
    assert [without_generations(each) for each in answers[0]] == [without_generations(each) for each in answers[1]]
    assert answers[0][-1]


def test_two_graphs_take_turns(tmp_path: Path) -> None:
    for name, modulus in (("one", 5), ("two", 7)):
        graph_of([[place % modulus for place in range(200)]], 2, VOCABULARY_SIZE).save(tmp_path / f"{name}.pkl")
    server = Server(tmp_path / "one.pkl", True, graphs={"two": tmp_path / "two.pkl"})
    for session_id, name in ((1, "one"), (2, "two")):
        server.sessions.open(session_id, server.graphs.get(name))
        server.step(chain_step(session_id, 0, [0, 1, 2]))
    for turn in range(3):
        for session_id, modulus in ((1, 5), (2, 7)):
            token = (3 + turn) % modulus
            draft = server.step(chain_step(session_id, 3 + turn, [token])).draft
            assert list(draft.draft_tokens) == [(token + 1 + place) % modulus for place in range(5)]
            assert draft.graph_generation == session_id
    assert server.num_usual == 6
    both = StepRequest(tuple(SequenceRequest((), session_id, 6, 2) for session_id in (1, 2)), StepOptions("greedy"))
    draft = server.step(both).draft
    assert (draft.graph_generation, list(draft.sequence_generations)) == (0, [1, 2])
    server.close()


def test_a_prompt_in_parts_is_not_learned(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph_of([CORPUS], 4, VOCABULARY_SIZE).save(path)
    learned = []
    for parts in ([(0, 40, 5)], [(0, 20, 0), (20, 40, 5)], [(0, 20, 5), (20, 40, 5)]):
        server = Server(path, True)
        server.sessions.open(1, server.graphs.get(""), learn=True)
        for start, end, budget in [*parts, (40, 50, 5)]:
            server.step(StepRequest((SequenceRequest(tuple(CORPUS[start:end]), 1, start, budget),)))
        server.close()
        learned.append(server.graphs.learned_tokens)
    assert learned[0] == learned[1] < learned[2]


def test_a_client_of_one_tenant_is_served_by_the_kernel_and_others_are_not_served(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph_of([CORPUS], 4, VOCABULARY_SIZE).save(path)
    server = Server(path, True)
    mine, other = (Principal(name, frozenset({name}), frozenset({"*"}), False) for name in ("mine", "other"))
    for _ in range(2):  # numbers of tenants without sessions are forgotten
        server.sessions.open(1, server.graphs.get(""), "mine")
        server.step(chain_step(1, 0, CORPUS[:10]), mine)
        before = server.num_usual
        assert list(server.step(chain_step(1, 10, [3]), other).draft.sequence_statuses) == [2]
        assert server.num_usual == before
        assert list(server.step(chain_step(1, 10, [3]), mine).draft.sequence_statuses) == [1]
        assert server.num_usual == before + 1
        server.close()
    assert server.sessions.tenant_number("mine") is None


def test_coupled_steps_are_usual_whether_the_request_or_the_server_says_so(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    corpus = np.random.default_rng(2).integers(0, 6, 900).tolist()
    graph_of([corpus], 3, VOCABULARY_SIZE).save(path)
    tokens: dict[tuple[str, str | None], set[tuple[int, ...]]] = {}
    for default, is_compiled in itertools.product(("none", "gumbel"), (True, False)):
        server = Server(path, is_compiled, DraftConfig(k=4, coupling=default))
        for coupling in (None, "none", "gumbel"):
            drafted: list[int] = []
            for session_id in range(1, 20):
                server.open(session_id)
                server.step(chain_step(session_id, 0, [0]))
                request = SequenceRequest((1,), session_id, 1, 5, session_id)
                before = server.num_usual
                answer = server.step(StepRequest((request,), StepOptions("sampling", coupling=coupling)))
                assert server.num_usual == before + is_compiled
                drafted += answer.draft.draft_tokens
            tokens.setdefault((default, coupling), set()).add(tuple(drafted))
            server.close()
    assert all(len(drafts) == 1 for drafts in tokens.values()), "the kernel draws as Python does"
    assert tokens["none", None] == tokens["none", "none"] == tokens["gumbel", "none"]
    assert tokens["gumbel", None] == tokens["gumbel", "gumbel"] == tokens["none", "gumbel"]
    assert tokens["none", "none"] != tokens["none", "gumbel"]


def test_nodes_of_all_sequences_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph_of([CORPUS], 4, VOCABULARY_SIZE).save(path)
    for is_compiled in (True, False):
        server = Server(path, is_compiled, max_step_nodes=20)
        for session_id in (1, 2):
            server.open(session_id)
            server.step(chain_step(session_id, 0, CORPUS[:10]))
        for budget, code in ((10, 0), (11, 8)):
            sequences = tuple(SequenceRequest((), session_id, 10, budget) for session_id in (1, 2))
            answer = server.step(StepRequest(sequences, StepOptions("greedy")))
            assert answer.error.code == code
        assert "at most 20" in answer.error.message
        server.close()
