"""Answers to steps, read and written slowly and obviously: over protobuf's own classes and whole arrays of numpy."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.messages import SequenceAnswer, SequenceStatus, StepAnswer
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, StrategyName
from support.batch import DraftBatch, batch_of

_STATUSES = {status.value: status for status in SequenceStatus}
_MASS_TOLERANCE = 1e-3
_NS_PER_S = 1_000_000_000


def encode_step_answer(answer: StepAnswer) -> bytes:
    """Return the DraftResponse for an answer."""
    drafts = batch_of([entry.draft for entry in answer.sequences])
    message = pb.DraftResponse(
        graph_generation=answer.graph_generation,
        draft_id=answer.draft_id,
        sequence_statuses=[entry.status for entry in answer.sequences],
        next_positions=[entry.next_position for entry in answer.sequences],
        draft_lengths=drafts.lengths,
        draft_tokens=drafts.token_ids,
        draft_parents=drafts.parents,
        draft_path_probabilities=drafts.path_probabilities,
        candidate_counts=drafts.candidate_counts,
        candidate_tokens=drafts.candidate_token_ids.astype(int).tolist(),
        candidate_probabilities=drafts.candidate_probabilities.tolist(),
        ended_early=drafts.ended_early,
        sequence_generations=[entry.graph_generation for entry in answer.sequences],
    )
    message.server_time.FromNanoseconds(answer.server_time_ns)
    return message.SerializeToString()


def decode_step_answer(
    payload: bytes, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int
) -> StepAnswer:
    """Return the answer to a step.

    Args:
        payload: the DraftResponse.
        budgets: most nodes asked for, per sequence.
        strategy: the strategy asked for.
        vocabulary_size: drafted token ids and those of q must be below it.

    Raises:
        DraftRequestError: the answer breaks a rule of the wire. A draft that passes can be verified safely.
    """
    try:
        message = pb.DraftResponse.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the answer can't be parsed; check what serves at this address") from None
    count = len(budgets)
    statuses = _array(message, "sequence_statuses")
    next_positions = _array(message, "next_positions")
    lengths = _array(message, "draft_lengths")
    for name, array in (
        ("sequence_statuses", statuses),
        ("next_positions", next_positions),
        ("draft_lengths", lengths),
    ):
        expect(name, array, count, "the number of sequences")
    drafts = DraftBatch(
        strategy=strategy,
        lengths=lengths.tolist(),
        ended_early=per_sequence("ended_early", _array(message, "ended_early"), count),
        token_ids=_array(message, "draft_tokens"),
        parents=_array(message, "draft_parents"),
        path_probabilities=_array(message, "draft_path_probabilities"),
        candidate_counts=_array(message, "candidate_counts"),
        candidate_token_ids=_array(message, "candidate_tokens"),
        candidate_probabilities=_array(message, "candidate_probabilities"),
        draft_id=message.draft_id,
    )
    _check_nodes(drafts, vocabulary_size)
    _check_proposals(drafts, vocabulary_size)
    generations = _array(message, "sequence_generations")
    if generations.size:
        expect("sequence_generations", generations, count, "the number of sequences")
    sequences = []
    for status, next_position, draft, budget, generation in zip(
        statuses.tolist(),
        next_positions.tolist(),
        drafts.drafts(),
        budgets,
        generations.tolist() or [message.graph_generation] * count,
        strict=True,
    ):
        if status not in _STATUSES:
            raise DraftRequestError(f"sequence status {status} is unknown; update the client")
        _check_tree(draft, budget)
        sequences.append(SequenceAnswer(_STATUSES[status], next_position, draft, generation))
    return StepAnswer(
        message.graph_generation,
        message.draft_id,
        tuple(sequences),
        message.server_time.seconds * _NS_PER_S + message.server_time.nanos,
    )


_DTYPES = {"draft_path_probabilities": "f4", "candidate_probabilities": "f4"}


def _array(message: pb.DraftResponse, name: str) -> NDArray[Any]:
    is_long = name in {"next_positions", "sequence_generations"}
    return np.array(getattr(message, name), _DTYPES.get(name, "u8" if is_long else "u4"))


def per_sequence(name: str, values: NDArray[Any], count: int) -> list[int]:
    """Return one value per sequence; an empty array stands for zeros."""
    if not values.size:
        return [0] * count
    expect(name, values, count, "the number of sequences")
    return values.tolist()


def expect(name: str, values: Sized, expected: int, meaning: str) -> None:
    """Check the length of an array; ``meaning`` says where the expected one comes from."""
    if len(values) != expected:
        raise DraftRequestError(f"{name} has {len(values)} entries; {meaning} is {expected}")


def check_token_ids(name: str, largest: int, vocabulary_size: int) -> None:
    """Check the largest token id of an array."""
    if largest >= vocabulary_size:
        raise DraftRequestError(f"{name} holds {largest}; the vocabulary has {vocabulary_size} tokens")


def _check_nodes(drafts: DraftBatch, vocabulary_size: int) -> None:
    token_ids, probabilities = np.asarray(drafts.token_ids), np.asarray(drafts.path_probabilities)
    expect("draft_tokens", token_ids, sum(drafts.lengths), "the sum of its lengths")
    expect("draft_parents", drafts.parents, token_ids.size, "the number of nodes")
    if probabilities.size:
        expect("draft_path_probabilities", probabilities, token_ids.size, "the number of nodes")
        # Written so that NaN fails.
        if not (probabilities.min() >= 0.0 and probabilities.max() <= 1.0):
            raise DraftRequestError("draft_path_probabilities are not all between 0 and 1")
    if token_ids.size:
        check_token_ids("draft_tokens", int(token_ids.max()), vocabulary_size)
        if drafts.draft_id == 0:
            raise DraftRequestError("draft_id is 0")


def _check_tree(draft: Draft, budget: int) -> None:
    if len(draft) > budget:
        raise DraftRequestError(f"a draft has {len(draft)} nodes where {budget} were asked for")
    if draft.is_chain:
        return
    if any(parent > index for index, parent in enumerate(draft.parents)):
        raise DraftRequestError("a node of a draft comes before its parent")
    # Of siblings that were drawn some may be the same, which their q tells.
    if not draft.proposals and len(set(zip(draft.parents, draft.token_ids, strict=True))) < len(draft):
        raise DraftRequestError("two siblings of a draft have the same token")


def _check_proposals(drafts: DraftBatch, vocabulary_size: int) -> None:
    """Check q of every node, if any were sent."""
    counts: NDArray[Any] = np.asarray(drafts.candidate_counts)
    candidates, probabilities = drafts.candidate_token_ids, drafts.candidate_probabilities
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if counts.size else 0
    expect("candidate_tokens", candidates, total, "the sum of candidate_counts")
    expect("candidate_probabilities", probabilities, total, "the sum of candidate_counts")
    if not counts.size:
        return
    expect("candidate_counts", counts, len(drafts.token_ids), "the number of nodes")
    if counts.min() == 0:
        raise DraftRequestError("a node has an empty distribution")
    starts = ends - counts
    check_token_ids("candidate_tokens", int(candidates.max()), vocabulary_size)
    is_ascending = candidates[1:] > candidates[:-1]
    is_ascending[starts[1:] - 1] = True
    if not is_ascending.all():
        raise DraftRequestError("candidate_tokens do not ascend within a node")
    # Written so that NaN fails.
    if not (probabilities.min() >= 0.0 and probabilities.max() < np.inf):
        raise DraftRequestError("candidate_probabilities are not all probabilities")
    masses = np.add.reduceat(probabilities, starts, dtype=np.float64)
    if masses.max() > 1.0 + _MASS_TOLERANCE or masses.min() < 1.0 - _MASS_TOLERANCE:
        raise DraftRequestError("candidate_probabilities do not sum to 1 within a node")
    drawn = np.repeat(np.asarray(drafts.token_ids), counts)
    if np.count_nonzero((candidates == drawn) & (probabilities > 0.0)) < counts.size:
        raise DraftRequestError("a drafted token has no probability in its own distribution")
