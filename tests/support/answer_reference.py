"""Slow reference for reading and writing step responses, value by value over protobuf's own classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from google.protobuf.message import DecodeError

from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.step_messages import SequenceStatus
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.strategies import StrategyName
from speculant_graph.types import Draft, Proposal
from support.step_values import SequenceResponse, StepResponse


def encode_step_response(answer: StepResponse) -> bytes:
    """Return the serialized DraftResponse for a step response."""
    drafts = [entry.draft for entry in answer.sequences]
    proposals = [proposal for draft in drafts for proposal in draft.proposals]
    message = pb.DraftResponse(
        graph_generation=answer.graph_generation,
        draft_id=answer.draft_id,
        sequence_statuses=[entry.status for entry in answer.sequences],
        next_positions=[entry.next_position for entry in answer.sequences],
        draft_lengths=[len(draft) for draft in drafts],
        draft_tokens=chain.from_iterable(draft.token_ids for draft in drafts),
        draft_parents=chain.from_iterable(draft.parents for draft in drafts),
        draft_path_probabilities=chain.from_iterable(draft.path_probabilities for draft in drafts),
        candidate_counts=[len(proposal.token_ids) for proposal in proposals],
        candidate_tokens=chain.from_iterable(proposal.token_ids.tolist() for proposal in proposals),
        candidate_probabilities=chain.from_iterable(proposal.probabilities.tolist() for proposal in proposals),
        ended_early=[int(draft.terminated_early) for draft in drafts],
        sequence_generations=[entry.graph_generation for entry in answer.sequences],
    )
    message.server_time.FromNanoseconds(answer.server_time_ns)
    return message.SerializeToString()


def decode_step_answer(
    payload: bytes, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int
) -> StepResponse:
    """Return a decoded and checked step response.

    Args:
        payload: the serialized DraftResponse.
        budgets: maximum number of requested nodes, per sequence.
        strategy: the requested strategy.
        vocabulary_size: drafted token ids and the ids in q must be below it.

    Raises:
        DraftRequestError: the response breaks a rule of the wire. A draft that passes can be verified safely.
    """
    try:
        message = pb.DraftResponse.FromString(payload)
    except DecodeError:
        raise DraftRequestError("it can't be parsed") from None
    count, num_nodes = len(budgets), sum(message.draft_lengths)
    _hold(len(message.sequence_statuses) == len(message.next_positions) == len(message.draft_lengths) == count)
    _hold(len(message.ended_early) in {0, count} and len(message.sequence_generations) in {0, count})
    _hold(len(message.draft_tokens) == len(message.draft_parents) == num_nodes)
    _hold(len(message.draft_path_probabilities) in {0, num_nodes} and len(message.candidate_counts) in {0, num_nodes})
    _hold(len(message.candidate_tokens) == len(message.candidate_probabilities) == sum(message.candidate_counts))
    _hold(all(0 <= probability <= 1 for probability in message.draft_path_probabilities))
    _hold(all(token_id < vocabulary_size for token_id in message.draft_tokens))
    _hold(num_nodes == 0 or message.draft_id != 0)
    proposals = _proposals(message, vocabulary_size)
    sequences, start = [], 0
    for index, budget in enumerate(budgets):
        end = start + message.draft_lengths[index]
        tokens, parents = tuple(message.draft_tokens[start:end]), tuple(message.draft_parents[start:end])
        _hold(len(tokens) <= budget)
        _hold(all(parent <= node for node, parent in enumerate(parents)))
        # Sampled siblings may be equal; only sampled drafts have q.
        _hold(bool(proposals) or len(set(zip(parents, tokens, strict=True))) == len(tokens))
        _hold(message.sequence_statuses[index] in list(SequenceStatus))
        draft = Draft(
            tokens,
            parents,
            tuple(message.draft_path_probabilities[start:end]),
            proposals[start:end],
            strategy,
            bool(message.ended_early and message.ended_early[index]),
            message.draft_id,
        )
        generations = message.sequence_generations or [message.graph_generation] * count
        status = SequenceStatus(message.sequence_statuses[index])
        sequences.append(SequenceResponse(status, message.next_positions[index], draft, generations[index]))
        start = end
    sent = message.server_time
    return StepResponse(
        message.graph_generation, message.draft_id, tuple(sequences), sent.seconds * 1_000_000_000 + sent.nanos
    )


def _hold(holds: bool) -> None:
    if not holds:
        raise DraftRequestError("a rule of the wire is broken")


def _proposals(message: pb.DraftResponse, vocabulary_size: int) -> list[Proposal]:
    """Return q of every node; empty if no q was sent."""
    proposals, start = [], 0
    for drawn, size in zip(message.draft_tokens, message.candidate_counts, strict=False):
        tokens = list(message.candidate_tokens[start : start + size])
        probabilities = list(message.candidate_probabilities[start : start + size])
        _hold(size > 0 and tokens == sorted(set(tokens)) and tokens[-1] < vocabulary_size)
        _hold(all(0 <= probability < math.inf for probability in probabilities))
        _hold(abs(math.fsum(probabilities) - 1) <= 1e-3)
        _hold(dict(zip(tokens, probabilities, strict=True)).get(drawn, 0) > 0)
        proposals.append(Proposal(np.array(tokens, np.uint32), np.array(probabilities, np.float32)))
        start += size
    return proposals
