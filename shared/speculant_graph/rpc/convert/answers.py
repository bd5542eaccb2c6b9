"""Answers to steps: drafts and their distributions, which are large and are checked as whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from speculant_graph.draft.batch import DraftBatch
from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc import mirror
from speculant_graph.rpc.convert.checks import check_token_ids, expect, per_sequence
from speculant_graph.rpc.messages import BatchAnswer, SequenceAnswer, SequenceStatus, StepAnswer
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, StrategyName

_STATUSES = {status.value: status for status in SequenceStatus}
_MASS_TOLERANCE = 1e-3
_NS_PER_S = 1_000_000_000


def encode_step_answer(answer: BatchAnswer) -> bytes:
    """Return the DraftResponse for ``answer``."""
    drafts = answer.drafts
    message = mirror.DraftResponse(graph_generation=answer.graph_generation, draft_id=answer.draft_id)
    for name, values in (
        ("sequence_statuses", answer.statuses),
        ("next_positions", answer.next_positions),
        ("draft_lengths", drafts.lengths),
        ("draft_tokens", drafts.token_ids),
        ("draft_parents", drafts.parents),
        ("draft_path_probabilities", drafts.path_probabilities),
        ("candidate_counts", drafts.candidate_counts),
        ("candidate_tokens", drafts.candidate_token_ids),
        ("candidate_probabilities", drafts.candidate_probabilities),
        ("ended_early", drafts.ended_early),
        ("sequence_generations", answer.sequence_generations),
    ):
        if len(values):
            getattr(message, name).append(mirror.packed(name, values))
    seconds, nanos = divmod(answer.server_time_ns, _NS_PER_S)
    message.server_time.append(Duration(seconds=seconds, nanos=nanos).SerializeToString())
    payload: bytes = message.SerializeToString()
    return payload


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
    message = _parsed(payload)
    count = len(budgets)
    statuses = mirror.array(message, "sequence_statuses")
    next_positions = mirror.array(message, "next_positions")
    lengths = mirror.array(message, "draft_lengths")
    for name, array in (
        ("sequence_statuses", statuses),
        ("next_positions", next_positions),
        ("draft_lengths", lengths),
    ):
        expect(name, array, count, "the number of sequences")
    drafts = DraftBatch(
        strategy=strategy,
        lengths=lengths.tolist(),
        ended_early=per_sequence("ended_early", mirror.array(message, "ended_early"), count),
        token_ids=mirror.array(message, "draft_tokens"),
        parents=mirror.array(message, "draft_parents"),
        path_probabilities=mirror.array(message, "draft_path_probabilities"),
        candidate_counts=mirror.array(message, "candidate_counts"),
        candidate_token_ids=mirror.array(message, "candidate_tokens"),
        candidate_probabilities=mirror.array(message, "candidate_probabilities"),
        draft_id=message.draft_id,
    )
    _check_nodes(drafts, vocabulary_size)
    _check_proposals(drafts, vocabulary_size)
    generations = mirror.array(message, "sequence_generations")
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
    return StepAnswer(message.graph_generation, message.draft_id, tuple(sequences), _server_time_ns(message))


def _parsed(payload: bytes) -> Any:
    """Return the mirror of a DraftResponse, or the public message where the mirror would miss something."""
    try:
        message = mirror.DraftResponse.FromString(payload)
        return message if mirror.is_usual(message) else pb.DraftResponse.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the answer can't be parsed; check what serves at this address") from None


def _server_time_ns(message: Any) -> int:
    if isinstance(message, pb.DraftResponse):
        duration = message.server_time
    else:
        try:
            duration = Duration.FromString(b"".join(message.server_time))
        except DecodeError:
            raise DraftRequestError("server_time can't be parsed; check what serves at this address") from None
    return int(duration.seconds * _NS_PER_S + duration.nanos)


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
