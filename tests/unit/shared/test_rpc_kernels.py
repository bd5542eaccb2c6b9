"""The usual step as machine code is the same step."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.draft.batch import batch_of
from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc import convert
from speculant_graph.rpc.convert.usual import read_usual_answer
from speculant_graph.rpc.kernels.sessions import LAST_USED, SESSION_ID, SessionRows, find_row, signed
from speculant_graph.rpc.messages import BatchAnswer, StepAnswer
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, Proposal

VOCABULARY_SIZE, BUDGET = 40, 5


@st.composite
def chains(draw: st.DrawFn, has_proposals: bool) -> Draft:
    tokens, proposals = [], []
    for _ in range(draw(st.integers(0, BUDGET))):
        support = sorted(draw(st.sets(st.integers(0, VOCABULARY_SIZE - 1), min_size=1, max_size=6)))
        counts = np.array(draw(st.lists(st.integers(1, 99), min_size=len(support), max_size=len(support))))
        proposals.append(Proposal(np.array(support, np.uint32), (counts / counts.sum()).astype(np.float32)))
        tokens.append(draw(st.sampled_from(support)))
    return Draft(
        tuple(tokens),
        tuple(range(len(tokens))),
        proposals=tuple(proposals) if has_proposals else (),
        terminated_early=draw(st.booleans()),
    )


@st.composite
def answers(draw: st.DrawFn) -> tuple[BatchAnswer, int]:
    count = draw(st.integers(1, 4))
    has_proposals = draw(st.booleans())
    drafts = batch_of([draw(chains(has_proposals)) for _ in range(count)])
    positions = [draw(st.integers(0, 2**40)) for _ in range(count)]
    nanoseconds = draw(st.integers(0, 10**12))
    answer = BatchAnswer(
        draw(st.integers(1, 99)), draw(st.integers(1, 99)), [1] * count, positions, drafts, nanoseconds
    )
    return answer, draw(st.integers(0, 2**64 - 1))


def values_of(answer: StepAnswer) -> Any:
    return answer.graph_generation, answer.draft_id, answer.server_time_ns, [
        (
            each.status,
            each.next_position,
            each.graph_generation,
            each.draft.token_ids,
            each.draft.parents,
            each.draft.path_probabilities,
            each.draft.terminated_early,
            each.draft.draft_id,
            [(q.token_ids.tolist(), q.probabilities.tolist()) for q in each.draft.proposals],
        )
        for each in answer.sequences
    ]  # fmt: skip


@given(answers())
def test_chains_are_read_as_python_reads_them(given: tuple[BatchAnswer, int]) -> None:
    answer, step_id = given
    inner = convert.encode_step_answer(answer)
    payload = convert.encode_stream_answer(step_id, inner)
    arguments: dict[str, Any] = {"strategy": "sampling", "vocabulary_size": VOCABULARY_SIZE}
    budgets = [BUDGET] * len(answer.statuses)
    expected = convert.decode_step_answer(inner, budgets=budgets, **arguments)
    usual = read_usual_answer(payload, budgets, "sampling", VOCABULARY_SIZE)
    assert usual is not None
    assert values_of(usual) == values_of(expected)
    assert usual.sequences[0] is usual.sequences[0]
    read = convert.read_stream_answer(payload)
    assert read.step_id == step_id
    assert values_of(read.decode(budgets=budgets, **arguments)) == values_of(expected)


@settings(max_examples=400)
@given(answers(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
def test_what_the_kernel_takes_python_takes_too(
    given: tuple[BatchAnswer, int], mutations: list[tuple[int, int]]
) -> None:
    answer, step_id = given
    changed = bytearray(convert.encode_stream_answer(step_id, convert.encode_step_answer(answer)))
    for place, value in mutations:
        changed[place % len(changed)] = value
    payload = bytes(changed)
    budgets = [BUDGET] * len(answer.statuses)
    usual = read_usual_answer(payload, budgets, "sampling", VOCABULARY_SIZE)
    if usual is not None:
        public = pb.StreamDraftResponse.FromString(payload)
        inner = public.draft.SerializeToString()
        expected = convert.decode_step_answer(
            inner, budgets=budgets, strategy="sampling", vocabulary_size=VOCABULARY_SIZE
        )
        assert values_of(usual) == values_of(expected)


def row_of(table: SessionRows, session_id: int) -> int:
    return int(find_row(table.index, table.rows, signed(session_id)))


GOOD = {
    "graph_generation": 1,
    "draft_id": 1,
    "sequence_statuses": [1],
    "next_positions": [4],
    "draft_lengths": [2],
    "draft_tokens": [3, 5],
    "draft_parents": [0, 1],
    "candidate_counts": [2, 1],
    "candidate_tokens": [3, 4, 5],
    "candidate_probabilities": [0.25, 0.75, 1.0],
    "ended_early": [1],
}


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence_statuses": [2]},
        {"draft_lengths": [1]},
        {"draft_lengths": [3]},
        {"draft_parents": [0, 0]},
        {"draft_tokens": [3, 40]},
        {"draft_path_probabilities": [0.5, 0.5]},
        {"candidate_counts": [3, 0]},
        {"candidate_counts": [2]},
        {"candidate_tokens": [4, 3, 5]},
        {"candidate_tokens": [3, 4, 6]},
        {"candidate_probabilities": [0.25, 0.25, 1.0]},
        {"candidate_probabilities": [float("nan"), 0.75, 1.0]},
        {"candidate_probabilities": [-0.25, 1.25, 1.0]},
        {"draft_id": 0},
        {"ended_early": [1, 1]},
        {"sequence_generations": [1]},
    ],
)
def test_everything_else_is_left_to_python(fields: dict[str, Any]) -> None:
    for values, is_usual in ((GOOD, True), ({**GOOD, **fields}, False)):
        payload = convert.encode_stream_answer(1, pb.DraftResponse(**values).SerializeToString())
        assert (read_usual_answer(payload, [2], "sampling", VOCABULARY_SIZE) is not None) == is_usual
    short = convert.encode_stream_answer(1, pb.DraftResponse(**GOOD).SerializeToString())
    assert read_usual_answer(short, [1], "sampling", VOCABULARY_SIZE) is None
    with pytest.raises(DraftRequestError, match="1 were asked for"):
        convert.read_stream_answer(short).decode(budgets=[1], strategy="sampling", vocabulary_size=VOCABULARY_SIZE)


def test_two_step_ids_are_read_as_protobuf_does() -> None:
    twice = b"\x09" + struct.pack("<Q", 1) + b"\x09" + struct.pack("<Q", 2) + b"\x12\x00"
    assert convert.read_stream_answer(twice).step_id == pb.StreamDraftResponse.FromString(twice).step_id == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200), st.integers(0, 2**32))
def test_rows_are_found_by_their_sessions(changes: list[tuple[bool, int]], seed: int) -> None:
    ids = [random.Random(seed + number).randrange(1, 2**64) for number in range(31)]
    table, rows = SessionRows(), dict[int, int]()
    for adds, number in changes:
        session_id = ids[number]
        if adds and session_id not in rows:
            rows[session_id] = table.add(session_id)
        elif not adds and session_id in rows:
            table.remove(rows.pop(session_id))
        assert {each: row_of(table, each) for each in ids} == {each: rows.get(each, -1) for each in ids}


def test_tables_grow_and_stay_in_order() -> None:
    table = SessionRows()
    rows = {session_id: table.add(session_id) for session_id in range(1, 1_000)}
    assert len(set(rows.values())) == len(rows)
    for session_id in range(1, 1_000, 2):
        table.remove(rows.pop(session_id))
    for _ in range(5_000):  # places that were used before do not fill the table up
        table.remove(table.add(5_000_000))
    assert all(row_of(table, session_id) == row for session_id, row in rows.items())
    assert all(table.rows[row, SESSION_ID] == session_id for session_id, row in rows.items())
    assert row_of(table, 1) == -1
    assert table.index.size < 10_000


@given(st.dictionaries(st.integers(1, 2**64 - 1), st.integers(0, 2**62), max_size=80), st.data())
def test_the_longest_idle_is_found(used: dict[int, int], data: st.DataObject) -> None:
    table = SessionRows()
    for session_id, time_ns in used.items():
        table.rows[table.add(session_id), LAST_USED] = time_ns
    for session_id in data.draw(st.lists(st.sampled_from(sorted(used)), unique=True)) if used else ():
        table.remove(row_of(table, session_id))
        del used[session_id]
    for spared in (None, 1, *used):
        times = {session_id: time_ns for session_id, time_ns in used.items() if session_id != spared}
        found = table.longest_idle(spared)
        assert (found is None) == (not times)
        assert found is None or times[found] == min(times.values())


def test_ids_keep_their_bits() -> None:
    assert [signed(0), signed(2**63 - 1), signed(2**63), signed(2**64 - 1)] == [0, 2**63 - 1, -(2**63), -1]
