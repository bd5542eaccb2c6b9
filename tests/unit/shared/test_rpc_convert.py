"""Converters of messages: values survive a round trip, and invalid messages raise only the documented errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.errors import (
    DraftRequestError,
    SpeculantError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.status import CODE_OF_NUMBER, from_status
from speculant_graph.rpc.step_messages import OpenRequest, OpenResponse, SequenceStatus
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.strategies import NGRAM_STRATEGIES
from speculant_graph.types import Draft, DraftOptions, Feedback, Fingerprint, Proposal, SourceName
from support import answer_reference
from support.answer_reference import encode_step_response
from support.sessions import values_of
from support.step_values import (
    SequenceRequest,
    SequenceResponse,
    StepRequest,
    StepResponse,
    encode_step,
    values_of_answer,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
VOCABULARY_SIZE = 40
BUDGET = 5
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)


@st.composite
def feedbacks(draw: st.DrawFn) -> Feedback:
    nodes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    width = draw(st.integers(1, 3))
    rows = [draw(st.lists(st.integers(0, 99), min_size=width, max_size=width)) for _ in nodes]
    return Feedback(draw(st.integers(1, 2**64 - 1)), nodes, np.array(rows, np.int64))


@st.composite
def step_requests(draw: st.DrawFn) -> StepRequest:
    has_budgets = draw(st.booleans())
    sequence = st.builds(
        SequenceRequest,
        token_ids=st.lists(U32, max_size=6).map(tuple),
        session_id=st.none() | st.integers(1, 2**64 - 1),
        position=U64,
        node_budget=U32 if has_budgets else st.none(),
        seed=U64,
        feedback=st.none() | feedbacks(),
        least_probability=st.sampled_from([0.0, 0.25, 1.0]),
    )
    options = st.builds(
        DraftOptions,
        st.none() | st.sampled_from(NGRAM_STRATEGIES),
        max_candidates=st.none() | U32,
        omit_proposals=st.booleans(),
        omit_neural=st.booleans(),
        max_depth=st.none() | st.integers(1, 255),
        max_branches=st.none() | st.integers(1, 64),
        temperature=st.none() | st.floats(0.01, 100),
        sources=st.none() | st.frozensets(st.sampled_from(get_args(SourceName)), min_size=1),
        coupling=st.sampled_from([None, "none", "gumbel"]),
        siblings=st.sampled_from(["none", "without-replacement", "independent"]),
    )
    return StepRequest(tuple(draw(st.lists(sequence, max_size=5))), draw(options), draw(st.text(max_size=5)))


@st.composite
def proposals_with_token(draw: st.DrawFn) -> tuple[Proposal, int]:
    support = sorted(draw(st.sets(st.integers(0, VOCABULARY_SIZE - 1), min_size=1, max_size=6)))
    counts = np.array(draw(st.lists(st.integers(1, 1000), min_size=len(support), max_size=len(support))))
    proposal = Proposal(np.array(support, np.uint32), (counts / counts.sum()).astype(np.float32))
    return proposal, draw(st.sampled_from(support))


@st.composite
def drafts(draw: st.DrawFn, draft_id: int, has_proposals: bool, has_probabilities: bool) -> Draft:
    nodes = draw(st.lists(proposals_with_token(), max_size=BUDGET))
    parents = tuple(draw(st.integers(0, index)) for index in range(len(nodes)))
    token_ids = tuple(token_id for _, token_id in nodes)
    if len(set(zip(parents, token_ids, strict=True))) < len(nodes):
        parents = tuple(range(len(nodes)))
    return Draft(
        token_ids=token_ids,
        parents=parents,
        path_probabilities=tuple(draw(st.floats(0, 1, width=32)) for _ in nodes) if has_probabilities else (),
        proposals=tuple(proposal for proposal, _ in nodes) if has_proposals else (),
        strategy="sampling",
        terminated_early=draw(st.booleans()),
        draft_id=draft_id,
    )


@st.composite
def step_answers(draw: st.DrawFn) -> StepResponse:
    draft_id = draw(st.integers(1, 2**64 - 1))
    draft = drafts(draft_id, draw(st.booleans()), draw(st.booleans()))
    sequence = st.builds(SequenceResponse, st.sampled_from(SequenceStatus), U64, draft, U64)
    sequences = tuple(draw(st.lists(sequence, max_size=4)))
    return StepResponse(draw(U64), draft_id, sequences, draw(st.integers(0, 10**12)))


def decode_answer(payload: bytes, count: int) -> StepResponse:
    budgets = [BUDGET] * count
    return values_of_answer(
        convert.decode_step_answer(
            payload, budgets=budgets, strategy="sampling", vocabulary_size=VOCABULARY_SIZE, is_enveloped=False
        )
    )


def comparable(answer: StepResponse) -> Any:
    """Return the response with arrays as lists."""
    sequences = [
        (each.status, each.next_position, each.graph_generation, each.draft.draft_id, values_of(each.draft))
        for each in answer.sequences
    ]
    return answer.graph_generation, answer.draft_id, answer.server_time_ns, sequences


def told(feedback: Feedback | None) -> Any:
    """Return feedback without the padding of its rows."""
    return feedback and (feedback.draft_id, list(feedback.nodes), [[t for t in row if t >= 0] for row in feedback.rows])


def entries_of(message: pb.DraftRequest) -> list[Any]:
    """Return the sequences of a message, each as a tuple of its fields."""
    count = len(message.context_lengths)
    tokens, nodes, rows = (
        list(values) for values in (message.context_tokens, message.feedback_nodes, message.feedback_tokens)
    )
    entries = []
    for index, length in enumerate(message.context_lengths):
        feedback = None
        if num_rows := message.feedback_row_counts[index] if message.feedback_row_counts else 0:
            width = message.feedback_width
            own = np.array(rows[: num_rows * width], np.int64).reshape(-1, width)
            own[own == 2**32 - 1] = -1
            feedback = told(Feedback(message.feedback_draft_ids[index], nodes[:num_rows], own))
            del nodes[:num_rows], rows[: num_rows * width]
        session_id, position, seed = (
            values[index] if values else 0 for values in (message.session_ids, message.positions, message.seeds)
        )
        budget = message.node_budgets[index] if message.node_budgets else None
        entries.append((session_id, position, tuple(tokens[:length]), budget, seed, feedback))
        del tokens[:length]
    assert not tokens + nodes + rows
    assert all(len(values) in {0, count} for values in (message.session_ids, message.positions, message.seeds))
    return entries


@given(step_requests())
def test_step_requests_say_what_was_asked(request: StepRequest) -> None:
    payload = encode_step(None, request)
    message = pb.DraftRequest.FromString(payload)
    assert message.graph == request.graph
    assert convert.decode_options(message.options.SerializeToString()) == request.options
    assert entries_of(message) == [
        (entry.session_id or 0, entry.position, entry.token_ids, entry.node_budget, entry.seed, told(entry.feedback))
        for entry in request.sequences
    ]
    assert message.SerializeToString() == payload, "as protobuf writes it"
    enveloped = pb.StreamDraftRequest.FromString(encode_step(7, request))
    assert (enveloped.step_id, enveloped.draft) == (7, message)


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], ["a"], [None], 5, [[1]], [2**70]])
def test_what_is_no_token_is_not_sent(tokens: Any) -> None:
    with pytest.raises(DraftRequestError):
        encode_step(None, StepRequest((SequenceRequest(tokens),)))


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"node_budget": 2**32}, {"nodes": [0], "rows": np.array([[2**32]])}])
def test_a_sequence_that_is_refused_leaves_no_trace(wrong: dict[str, Any]) -> None:
    def payload(*sequences: dict[str, Any]) -> bytes:
        writer = convert.request_writer()
        for each in sequences:
            if each is wrong:
                with pytest.raises(DraftRequestError):
                    writer.add([4, 5], **each)
            else:
                writer.add([6], **each)
        return writer.payload()

    right = {"session_id": 3, "node_budget": 2, "draft_id": 9, "nodes": [1], "rows": np.array([[7, 8]])}
    assert payload(right, wrong, right | {"session_id": 4}) == payload(right, right | {"session_id": 4})


def test_what_does_not_travel_is_left_out() -> None:
    assert convert.encode_options(DraftOptions(n=2, filler_top_k=3, stop_if_unknown=False)) == b""


def test_budgets_are_for_all_or_for_none() -> None:
    with pytest.raises(DraftRequestError):
        encode_step(None, StepRequest((SequenceRequest((1,), node_budget=1), SequenceRequest((1,)))))


def enveloped(payload: bytes) -> bytes:
    return pb.StreamDraftResponse(step_id=3, draft=pb.DraftResponse.FromString(payload)).SerializeToString()


@given(step_answers())
def test_step_answers_come_back(answer: StepResponse) -> None:
    payload = encode_step_response(answer)
    assert comparable(decode_answer(payload, len(answer.sequences))) == comparable(answer)
    assert convert.read_answer_step_id(enveloped(payload)) == 3
    budgets = [BUDGET] * len(answer.sequences)
    decoded = convert.decode_step_answer(
        enveloped(payload), budgets=budgets, strategy="sampling", vocabulary_size=VOCABULARY_SIZE
    )
    assert comparable(values_of_answer(decoded)) == comparable(answer)


def outcome_of(decode: Callable[[bytes, int], StepResponse], payload: bytes, count: int) -> Any:
    try:
        return comparable(decode(payload, count))
    except DraftRequestError as error:
        return len(str(error).splitlines())


def decode_slowly(payload: bytes, count: int) -> StepResponse:
    return answer_reference.decode_step_answer(
        payload, budgets=[BUDGET] * count, strategy="sampling", vocabulary_size=VOCABULARY_SIZE
    )


@pytest.mark.hostile
@settings(max_examples=150)
@given(step_answers(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3))
def test_answers_are_read_as_protobuf_and_numpy_read_them(
    answer: StepResponse, mutations: list[tuple[int, int]]
) -> None:
    payload, count = mutated(encode_step_response(answer), mutations), len(answer.sequences)
    assert repr(outcome_of(decode_answer, payload, count)) == repr(outcome_of(decode_slowly, payload, count))


@settings(max_examples=150)
@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=6)), max_size=4), st.integers(0, 2**64 - 1))
def test_the_later_outcome_counts(runs: list[tuple[bool, bytes]], step_id: int) -> None:
    payload = step_id.to_bytes(8, "little").join([b"\x09", b""])
    for is_draft, data in runs:
        payload += (b"\x12" if is_draft else b"\x1a") + bytes([len(data)]) + data
    assert convert.read_answer_step_id(payload) == step_id
    try:
        public = pb.StreamDraftResponse.FromString(payload)
    except DecodeError:
        return
    try:
        convert.decode_step_answer(payload, budgets=[1], strategy="greedy", vocabulary_size=VOCABULARY_SIZE)
        raised: Exception = AssertionError("no sequence was answered")
    except SpeculantError as error:
        raised = error
    if public.WhichOneof("outcome") == "draft":
        assert type(raised) is DraftRequestError
        assert "parsed" not in str(raised)
    else:
        code = CODE_OF_NUMBER[public.error.code]
        assert (type(raised), str(raised)) == (
            type(from_status(code, public.error.message)),
            str(from_status(code, public.error.message)),
        )


@settings(max_examples=20)
@given(
    st.builds(
        OpenRequest,
        session_id=st.integers(1, 2**64 - 1),
        tokenizer_sha256=st.just("") | DIGESTS,
        tenant=st.text(max_size=5),
        graph=st.text(max_size=5),
        learn=st.booleans(),
    ),
    st.builds(OpenResponse, U64, st.builds(Fingerprint, st.text(max_size=5), DIGESTS, U32), U32, U64),
)
def test_openings_come_back(request: OpenRequest, answer: OpenResponse) -> None:
    assert convert.decode_open_request(convert.encode_open_request(request)) == request
    assert convert.decode_open_response(convert.encode_open_response(answer)) == answer


def mutated(payload: bytes, mutations: list[tuple[int, int]]) -> bytes:
    changed = bytearray(payload)
    for offset, value in mutations if changed else ():
        changed[offset % len(changed)] = value
    return bytes(changed)


GOOD_ANSWER = {
    "draft_id": 1,
    "sequence_statuses": [1],
    "next_positions": [4],
    "draft_lengths": [2],
    "draft_tokens": [3, 5],
    "draft_parents": [0, 1],
    "candidate_counts": [2, 1],
    "candidate_tokens": [3, 4, 5],
    "candidate_probabilities": [0.25, 0.75, 1.0],
}
WITHOUT_Q: dict[str, Any] = {"candidate_counts": [], "candidate_tokens": [], "candidate_probabilities": []}


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sequence_statuses": []}, "sequence_statuses"),
        ({"sequence_statuses": [9]}, "status 9"),
        ({"draft_lengths": [1]}, "draft_tokens has 2"),
        ({"draft_parents": [0]}, "draft_parents"),
        ({"draft_parents": [1, 0]}, "before its parent"),
        ({"draft_parents": [0, 0], "draft_tokens": [3, 3], **WITHOUT_Q}, "siblings"),
        ({"draft_tokens": [3, 40]}, "holds 40"),
        ({"draft_path_probabilities": [0.5, float("nan")]}, "between 0 and 1"),
        ({"candidate_counts": [3]}, "candidate_counts"),
        ({"candidate_counts": [3, 0]}, "empty distribution"),
        ({"candidate_tokens": [4, 3, 5]}, "ascend"),
        ({"candidate_tokens": [3, 4, 6]}, "own distribution"),
        ({"candidate_probabilities": [0.25, 0.25, 1.0]}, "sum to 1"),
        ({"candidate_probabilities": [float("nan"), 0.75, 1.0]}, "not all probabilities"),
        ({"draft_id": 0}, "draft_id"),
    ],
)
def test_bad_answers_are_refused(fields: dict[str, Any], reason: str) -> None:
    assert len(decode_answer(pb.DraftResponse(**GOOD_ANSWER).SerializeToString(), 1).sequences[0].draft) == 2
    # Promised behaviour: the log says which rule of the wire a server breaks.
    with pytest.raises(DraftRequestError, match=reason):
        decode_answer(pb.DraftResponse(**{**GOOD_ANSWER, **fields}).SerializeToString(), 1)


def test_siblings_that_were_drawn_may_be_the_same() -> None:
    fields = {"draft_parents": [0, 0], "draft_tokens": [3, 3], "candidate_tokens": [3, 4, 3]}
    answer = decode_answer(pb.DraftResponse(**{**GOOD_ANSWER, **fields}).SerializeToString(), 1)
    assert answer.sequences[0].draft.token_ids == (3, 3)


def test_drafts_beyond_the_budget_are_refused() -> None:
    payload = pb.DraftResponse(**GOOD_ANSWER).SerializeToString()
    with pytest.raises(DraftRequestError):
        convert.decode_step_answer(
            payload, budgets=[1], strategy="greedy", vocabulary_size=VOCABULARY_SIZE, is_enveloped=False
        )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"session_id": 0}, "session_id"),
        ({"session_id": 1, "tokenizer_sha256": b"short"}, "tokenizer_sha256"),
        ({"session_id": 1, "tenant": "a" * 257}, "tenant"),
    ],
)
def test_bad_openings_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(DraftRequestError) as caught:
        convert.decode_open_request(pb.OpenSessionRequest(**fields))
    assert caught.value.field == field
