"""The core answers steps as a slow reference does, in any order and for any bytes."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_drafter.graphs import GraphRegistry
from speculant_drafter.metrics import ServerMetrics
from speculant_drafter.service import DrafterService
from speculant_drafter.sessions import Limits, SessionStore
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import DraftLimitError, DraftRequestError, SpeculantError
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.serving.access import ANONYMOUS, Principal
from speculant_graph.strategies import NGRAM_STRATEGIES
from speculant_graph.types import DraftOptions, Feedback
from support.graphs import graph_of
from support.step_reference import ReferenceAnswerer
from support.step_values import SequenceRequest, StepRequest, encode_step

VOCABULARY_SIZE = 12
CORPUS = [(index * index + index // 3) % VOCABULARY_SIZE for index in range(700)]


class Server:
    """Sessions and steps without sockets."""

    def __init__(
        self, path: Path, draft: DraftConfig | None = None, limits: dict[str, float] | None = None, **settings: Any
    ) -> None:
        self.config = ServerConfig(graph=path, **settings)
        self.limits = Limits(**{"max_nodes": 64, **(limits or {})})
        self.draft = draft or DraftConfig(k=4)
        self.metrics = ServerMetrics()
        self.graphs = GraphRegistry(self.config, self.draft)
        asyncio.run(self.graphs.load_configured())
        self.now_s = 0.0
        self.sessions = SessionStore(self.config, self.metrics, lambda: self.now_s, self.limits)
        self.service = DrafterService(self.draft, self.graphs, self.sessions, self.metrics, self.limits)

    def open(self, session_id: int, tenant: str = "", **wanted: Any) -> None:
        served = self.graphs.get("")
        self.sessions.open(session_id, served, served.drafter.learned.memory(tenant), **wanted)

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"speculant_drafter_{name}_total", labels)

    def step(self, request: StepRequest, principal: Principal = ANONYMOUS) -> pb.StreamDraftResponse:
        answer = asyncio.run(self.service.answer_enveloped(encode_step(9, request), principal))
        response = pb.StreamDraftResponse.FromString(answer)
        assert response.step_id == 9
        return response


class Pair:
    """The core and the reference, which get the same steps."""

    def __init__(self, path: Path, draft: DraftConfig | None = None, **settings: Any) -> None:
        self.server = Server(path, draft, **settings)
        served = self.server.graphs.get("").drafter
        self.slow_drafter = SessionDrafter(served.graphs, self.server.draft)
        self.tables = served.calibration, self.slow_drafter.calibration
        self.begin()

    def begin(self) -> None:
        """Forget all sessions."""
        self.server.sessions.end_all()
        for session_id in range(9):
            self.slow_drafter.close(session_id)
        self.slow = ReferenceAnswerer(self.server.limits, self.server.draft, self.slow_drafter)
        self.server.service._draft_ids = iter(range(1, 1 << 30))

    def open(self, session_id: int) -> None:
        self.server.open(session_id)
        self.slow.open(session_id)

    def position(self, session_id: int) -> int:
        return self.server.sessions.table.position(session_id) or 0

    def send(self, payload: bytes) -> pb.DraftResponse | None:
        """Send a step to both; return the answer, or None if both refuse."""
        outcomes: list[Any] = []
        for answer in (self.fast_answer, self.slow.answer):
            try:
                outcomes.append(answer(payload))
            except SpeculantError as error:
                outcomes.append(error)
        fast, slow = outcomes
        if isinstance(slow, SpeculantError):
            # The core checks the limits before it parses the options. So a message with damaged options may exceed a
            # limit first.
            is_over = isinstance(fast, DraftLimitError) and "parsed" in str(slow)
            assert is_over or type(fast) is type(slow), (fast, slow)
            self.same_state()
            return None
        assert not isinstance(fast, SpeculantError), fast
        fast.ClearField("server_time")
        assert fast == slow
        self.same_state()
        return fast

    def fast_answer(self, payload: bytes) -> pb.DraftResponse:
        return pb.DraftResponse.FromString(asyncio.run(self.server.service.answer(payload, ANONYMOUS)))

    def same_state(self) -> None:
        open_ones = {number: len(session.text) for number, session in self.slow.sessions.items()}
        assert len(self.server.sessions) == len(open_ones)
        assert {number: self.position(number) for number in open_ones} == open_ones
        for fast, slow in zip(*([table.weights, table.bins] for table in self.tables), strict=True):
            np.testing.assert_array_equal(fast, slow)


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.pkl"
    graph_of([CORPUS], 4, VOCABULARY_SIZE).save(path)
    return path


@pytest.fixture(scope="module")
def pair(graph_path: Path) -> Pair:
    return Pair(graph_path)


@pytest.fixture(scope="module")
def tight_pair(graph_path: Path) -> Pair:
    return Pair(
        graph_path, limits={"max_step_nodes": 30, "max_sequences": 4, "max_tokens": 20, "max_message_bytes": 1_024}
    )


OPTIONS = st.builds(
    DraftOptions,
    strategy=st.sampled_from([None, *NGRAM_STRATEGIES, "sampling", "tree"]),
    max_candidates=st.sampled_from([None, 0, 2, 3]),
    omit_proposals=st.sampled_from([False, False, True]),
    omit_neural=st.booleans(),
    max_depth=st.sampled_from([None, 1, 3]),
    max_branches=st.sampled_from([None, 1, 2]),
    temperature=st.sampled_from([None, 0.5]),
    coupling=st.sampled_from([None, "none", "gumbel"]),
    siblings=st.sampled_from(["none", "without-replacement", "independent"]),
    sources=st.sampled_from([None, frozenset(["session"]), frozenset(["corpus", "recycled"])]),
)
SEQUENCES = st.lists(
    st.tuples(
        st.integers(0, 4),  # session; 0 has none, 4 is not open
        st.lists(st.integers(0, VOCABULARY_SIZE + 1), max_size=6),
        st.sampled_from([0, 0, 0, 0, 0, -1, 1, -3]),  # distance from the session's position
        st.integers(0, 7),  # budget
        st.integers(0, 2**64 - 1),  # seed
        st.none() | st.lists(st.tuples(st.integers(0, 4), st.integers(0, 13), st.integers(-1, 13)), max_size=3),
    ),
    max_size=4,
    unique_by=lambda sequence: sequence[0] or object(),
)
MUTATIONS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3)
STEPS = st.lists(st.tuples(SEQUENCES, OPTIONS, st.booleans(), st.just([]) | st.just([]) | MUTATIONS), max_size=8)


def request_of(pair: Pair, sequences: list[Any], options: DraftOptions, has_budgets: bool) -> StepRequest:
    told = []
    for session_id, tokens, distance, budget, seed, rows in sequences:
        feedback = None
        if rows:
            draft_id = pair.slow.sessions[session_id].draft_id if session_id in pair.slow.sessions else 7
            nodes, first, second = zip(*rows, strict=True)
            feedback = Feedback(draft_id, nodes, np.array([first, second]).T)
        position = max((pair.position(session_id) if session_id else 3) + distance, 0)
        told.append(
            SequenceRequest(
                tuple(tokens), session_id or None, position, budget if has_budgets else None, seed, feedback
            )
        )
    return StepRequest(tuple(told), options)


def play(pair: Pair, steps: list[Any]) -> None:
    pair.begin()
    for session_id in (1, 2, 3):
        pair.open(session_id)
    for sequences, options, has_budgets, mutations in steps:
        payload = bytearray(encode_step(None, request_of(pair, sequences, options, has_budgets)))
        for index, value in mutations if payload else ():
            payload[index % len(payload)] = value
        pair.send(bytes(payload))


@pytest.mark.hostile
@settings(max_examples=100)
@given(STEPS)
def test_any_steps(pair: Pair, steps: list[Any]) -> None:
    play(pair, steps)


@pytest.mark.hostile
@given(STEPS)
def test_any_steps_within_tight_limits(tight_pair: Pair, steps: list[Any]) -> None:
    play(tight_pair, steps)


def test_drafts_end_where_an_answer_would_be_too_large(tight_pair: Pair) -> None:
    missing = set()
    for seed, budget in itertools.product(range(5), range(1, 31)):
        tight_pair.begin()
        tight_pair.open(1)
        request = StepRequest((SequenceRequest((CORPUS[0],), 1, 0, budget, seed),), DraftOptions("sampling"))
        answer = tight_pair.send(encode_step(None, request))
        assert answer is not None
        missing.add(budget - answer.draft_lengths[0])
    assert {0, 1, 3} <= missing


def test_an_answer_from_two_generations_is_not_too_large(graph_path: Path) -> None:
    budgets = [3, 3] + 62 * [0]
    count = len(budgets)
    step = StepRequest(
        tuple(SequenceRequest((CORPUS[0],), number, 0, budget, number) for number, budget in enumerate(budgets, 1)),
        DraftOptions("sampling"),
    )

    def answer(max_message_bytes: int) -> pb.DraftResponse:
        server = Server(graph_path, limits={"max_sequences": count, "max_message_bytes": max_message_bytes})
        for number in range(1, count + 1):
            if number == 2:
                asyncio.run(server.graphs.reload(""))
            server.open(number)
        return server.step(step).draft

    whole = answer(1 << 20)
    assert len(set(whole.sequence_generations)) == 2
    assert list(whole.draft_lengths) == budgets
    enough = whole.ByteSize() + 32
    without_q = enough - 8 * len(whole.candidate_tokens)
    for max_message_bytes in range(without_q, enough + 300, 8):
        cut = answer(max_message_bytes)
        assert len(cut.draft_lengths) == count, "an answer that is too large is refused"
        assert cut.ByteSize() + 32 <= max_message_bytes


def varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


@pytest.mark.hostile
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, VOCABULARY_SIZE), max_size=4)), max_size=4))
def test_arrays_in_any_legal_encoding(pair: Pair, runs: list[tuple[bool, list[int]]]) -> None:
    pair.begin()
    pair.open(1)
    pieces = [pb.DraftRequest(graph="graph", session_ids=[1], node_budgets=[5]).SerializeToString()]
    for is_packed, tokens in runs:
        packed = [token.to_bytes(4, "little") for token in tokens]
        if is_packed:
            pieces.append(varint(5 << 3 | 2) + varint(4 * len(tokens)) + b"".join(packed))
        else:
            pieces += [varint(5 << 3 | 5) + token for token in packed]
        pieces.append(varint(99 << 3) + b"\x05")  # a field of a newer version
    total = sum(len(tokens) for _, tokens in runs)
    pieces.append(varint(4 << 3 | 5) + total.to_bytes(4, "little"))
    answer = pair.send(b"".join(pieces))
    assert answer is not None
    assert list(answer.next_positions) == [total]


GROUPS = st.lists(st.sampled_from([0x0B, 0x0C, 0x13, 0x14, 0, 1, 0x80, 0x0A, 2]), max_size=30).map(bytes)


@pytest.mark.hostile
@settings(max_examples=250)
@given(st.binary(max_size=24) | GROUPS)
def test_any_bytes(pair: Pair, payload: bytes) -> None:
    pair.begin()
    pair.send(payload)


@pytest.mark.hostile
@pytest.mark.parametrize("depth", [98, 99, 100, 101, 102])
def test_groups_within_groups(pair: Pair, depth: int) -> None:
    pair.begin()
    pair.send(b"\x7b" * depth + b"\x7c" * depth)


def chain_step(session_id: int, position: int, tokens: list[int], strategy: Any = "sampling") -> StepRequest:
    return StepRequest(
        (SequenceRequest(tuple(tokens), session_id, position, 5, 7),), DraftOptions(strategy=strategy, max_candidates=2)
    )


def test_a_prompt_in_parts_is_not_learned(tmp_path: Path) -> None:
    path = tmp_path / "graph.pkl"
    graph_of([CORPUS], 4, VOCABULARY_SIZE).save(path)
    learned = []
    for parts in ([(0, 40, 5)], [(0, 20, 0), (20, 40, 5)], [(0, 20, 5), (20, 40, 5)]):
        server = Server(path)
        server.open(1, learn=True)
        for start, end, budget in [*parts, (40, 50, 5)]:
            server.step(StepRequest((SequenceRequest(tuple(CORPUS[start:end]), 1, start, budget),)))
        server.sessions.end_all()
        learned.append(server.graphs.learned_tokens)
    assert learned[0] == learned[1] < learned[2]


def test_a_stranger_does_not_keep_a_session_from_being_idle(graph_path: Path) -> None:
    server = Server(graph_path, limits={"idle_timeout_s": 10.0})
    other = Principal(name="other", certificate_name="other")
    server.open(1, tenant="mine")
    server.now_s = 8.0
    server.step(chain_step(1, 0, [3]), other)
    server.now_s = 12.0
    assert list(server.step(chain_step(1, 0, [3])).draft.sequence_statuses) == [2]
    assert server.counted("ended_sessions", reason="idle") == 1


def test_refusals_in_an_envelope_keep_their_step_id(graph_path: Path) -> None:
    server = Server(graph_path, limits={"max_step_nodes": 20})
    for session_id in (1, 2):
        server.open(session_id)
    for budget, code in ((10, 0), (11, 8)):
        sequences = tuple(SequenceRequest((), session_id, 0, budget) for session_id in (1, 2))
        answer = server.step(StepRequest(sequences, DraftOptions("greedy")))
        assert answer.error.code == code
    assert "at most 20" in answer.error.message
    broken = pb.StreamDraftRequest(step_id=9).SerializeToString() + b"\x12\x01\xff"
    answer = pb.StreamDraftResponse.FromString(asyncio.run(server.service.answer_enveloped(broken, ANONYMOUS)))
    assert (answer.step_id, answer.error.code) == (9, 3)
    assert server.counted("failed_steps", code="RESOURCE_EXHAUSTED") == 1
    assert server.counted("failed_steps", code="INVALID_ARGUMENT") == 1
    with pytest.raises(DraftRequestError):
        asyncio.run(server.service.answer_enveloped(b"\x12\x05\xff", ANONYMOUS))
    assert server.counted("steps") == 1


@pytest.mark.parametrize("long", [{"num_tokens": 50_000, "budget": 0}, {"num_tokens": 1, "budget": 2_048}])
def test_nobody_waits_for_a_step_that_takes_long(graph_path: Path, long: dict[str, int]) -> None:
    server = Server(graph_path, limits={"max_nodes": 2_048})
    ended = []

    async def step(session_id: int, num_tokens: int, budget: int) -> None:
        tokens = tuple((CORPUS * (num_tokens // len(CORPUS) + 1))[:num_tokens])
        request = StepRequest((SequenceRequest(tokens, session_id, 0, budget),))
        await server.service.answer(encode_step(None, request), ANONYMOUS)
        ended.append((session_id, server.sessions.table.position(session_id)))

    async def both() -> None:
        await asyncio.gather(step(1, **long), step(2, 5, 8))

    for session_id in (1, 2):
        server.open(session_id)
    asyncio.run(both())
    assert ended == [(2, 5), (1, long["num_tokens"])]
    assert server.counted("steps") == 2
