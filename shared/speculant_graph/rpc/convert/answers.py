"""Answers to steps: drafts and their distributions, which are large and are checked as whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.convert.checks import check_token_ids, expect, per_sequence, spans
from speculant_graph.rpc.messages import SequenceAnswer, SequenceStatus, StepAnswer
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, Proposal, StrategyName

_STATUSES = frozenset(SequenceStatus)
_MASS_TOLERANCE = 1e-3


def encode_step_answer(answer: StepAnswer) -> pb.DraftResponse:
    """Return the message for ``answer``."""
    drafts = [sequence.draft for sequence in answer.sequences]
    message = pb.DraftResponse(graph_generation=answer.graph_generation, draft_id=answer.draft_id)
    message.sequence_statuses.extend([sequence.status for sequence in answer.sequences])
    message.next_positions.extend([sequence.next_position for sequence in answer.sequences])
    message.draft_lengths.extend([len(draft) for draft in drafts])
    message.ended_early.extend([int(draft.terminated_early) for draft in drafts])
    for draft in drafts:
        message.draft_tokens.extend(draft.token_ids)
        message.draft_parents.extend(draft.parents)
        message.draft_path_probabilities.extend(draft.path_probabilities)
        for proposal in draft.proposals:
            message.candidate_counts.append(len(proposal.token_ids))
            message.candidate_tokens.extend(proposal.token_ids.tolist())
            message.candidate_probabilities.extend(proposal.probabilities.tolist())
    message.server_time.FromNanoseconds(answer.server_time_ns)
    return message


def decode_step_answer(
    message: pb.DraftResponse, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int
) -> StepAnswer:
    """Return the answer to a step.

    Args:
        message: the answer.
        budgets: most nodes asked for, per sequence.
        strategy: the strategy asked for.
        vocabulary_size: drafted token ids and those of q must be below it.

    Raises:
        DraftRequestError: the answer breaks a rule of the wire. A draft that passes can be verified safely.
    """
    count = len(budgets)
    for name, array in (
        ("sequence_statuses", message.sequence_statuses),
        ("next_positions", message.next_positions),
        ("draft_lengths", message.draft_lengths),
    ):
        expect(name, array, count, "the number of sequences")
    ended_early = per_sequence("ended_early", message.ended_early, count)
    token_ids, parents = list(message.draft_tokens), list(message.draft_parents)
    expect("draft_parents", parents, len(token_ids), "the number of nodes")
    path_probabilities = list(message.draft_path_probabilities)
    if path_probabilities:
        expect("draft_path_probabilities", path_probabilities, len(token_ids), "the number of nodes")
    # Written so that NaN fails.
    if not all(0.0 <= probability <= 1.0 for probability in path_probabilities):
        raise DraftRequestError("draft_path_probabilities are not all between 0 and 1")
    check_token_ids("draft_tokens", max(token_ids, default=0), vocabulary_size)
    proposals = _decode_proposals(message, token_ids, vocabulary_size)
    if message.draft_id == 0 and token_ids:
        raise DraftRequestError("draft_id is 0")

    sequences = []
    for index, nodes in enumerate(spans("draft_tokens", token_ids, message.draft_lengths)):
        status = message.sequence_statuses[index]
        if status not in _STATUSES:
            raise DraftRequestError(f"sequence status {status} is unknown; update the client")
        draft = Draft(
            token_ids=tuple(token_ids[nodes]),
            parents=tuple(parents[nodes]),
            path_probabilities=tuple(path_probabilities[nodes]),
            proposals=tuple(proposals[nodes]),
            strategy=strategy,
            terminated_early=bool(ended_early[index]),
            draft_id=message.draft_id,
        )
        _check_tree(draft, budgets[index])
        sequences.append(SequenceAnswer(SequenceStatus(status), message.next_positions[index], draft))
    server_time_ns = message.server_time.seconds * 1_000_000_000 + message.server_time.nanos
    return StepAnswer(message.graph_generation, message.draft_id, tuple(sequences), server_time_ns)


def _check_tree(draft: Draft, budget: int) -> None:
    if len(draft) > budget:
        raise DraftRequestError(f"a draft has {len(draft)} nodes where {budget} were asked for")
    if draft.is_chain:
        return
    if any(parent > index for index, parent in enumerate(draft.parents)):
        raise DraftRequestError("a node of a draft comes before its parent")
    if len(set(zip(draft.parents, draft.token_ids, strict=True))) < len(draft):
        raise DraftRequestError("two siblings of a draft have the same token")


def _decode_proposals(message: pb.DraftResponse, token_ids: list[int], vocabulary_size: int) -> list[Proposal]:
    """Return q of every node, or nothing if none were sent."""
    counts = list(message.candidate_counts)
    total = sum(counts)
    expect("candidate_tokens", message.candidate_tokens, total, "the sum of candidate_counts")
    expect("candidate_probabilities", message.candidate_probabilities, total, "the sum of candidate_counts")
    if not counts:
        return []
    expect("candidate_counts", counts, len(token_ids), "the number of nodes")
    if min(counts) == 0:
        raise DraftRequestError("a node has an empty distribution")
    candidates = np.fromiter(message.candidate_tokens, np.uint32, total)
    probabilities = np.fromiter(message.candidate_probabilities, np.float32, total)
    ends = list(accumulate(counts))
    starts = [0, *ends[:-1]]
    check_token_ids("candidate_tokens", int(candidates.max()), vocabulary_size)
    is_ascending = candidates[1:] > candidates[:-1]
    is_ascending[np.asarray(starts[1:], dtype=np.intp) - 1] = True
    if not is_ascending.all():
        raise DraftRequestError("candidate_tokens do not ascend within a node")
    # Written so that NaN fails.
    if not ((probabilities >= 0.0) & (probabilities < np.inf)).all():
        raise DraftRequestError("candidate_probabilities are not all probabilities")
    masses = np.add.reduceat(probabilities, starts, dtype=np.float64)
    if np.abs(masses - 1.0).max() > _MASS_TOLERANCE:
        raise DraftRequestError("candidate_probabilities do not sum to 1 within a node")
    drawn = np.repeat(np.asarray(token_ids, dtype=np.uint32), counts)
    if np.count_nonzero((candidates == drawn) & (probabilities > 0.0)) < len(counts):
        raise DraftRequestError("a drafted token has no probability in its own distribution")
    return [Proposal(candidates[start:end], probabilities[start:end]) for start, end in zip(starts, ends, strict=True)]
