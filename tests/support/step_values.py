"""Steps and their responses as values, for comparison with encoded messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from speculant_graph._core import StepResponse as CoreAnswer
from speculant_graph.rpc import convert
from speculant_graph.rpc.step_messages import SequenceStatus
from speculant_graph.types import EMPTY_DRAFT, Draft, DraftOptions, Feedback, TokenId


class SequenceRequest(NamedTuple):
    """One sequence of a step."""

    token_ids: Sequence[TokenId]
    session_id: int | None = None
    position: int = 0
    node_budget: int | None = None
    seed: int = 0
    feedback: Feedback | None = None
    least_probability: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step of a batch."""

    sequences: Sequence[SequenceRequest]
    options: DraftOptions = field(default_factory=DraftOptions)
    graph: str = ""


class SequenceResponse(NamedTuple):
    """The result for one sequence of a step."""

    status: SequenceStatus
    next_position: int = 0
    draft: Draft = EMPTY_DRAFT
    graph_generation: int = 0


@dataclass(frozen=True, slots=True)
class StepResponse:
    """The response to one step."""

    graph_generation: int
    draft_id: int
    sequences: Sequence[SequenceResponse]
    server_time_ns: int = 0


def encode_step(step_id: int | None, request: StepRequest) -> bytes:
    """Return the StreamDraftRequest of a step; without an id, only its DraftRequest."""
    writer = convert.request_writer(request.options, request.graph)
    for each in request.sequences:
        told = each.feedback
        writer.add(
            each.token_ids,
            each.session_id or 0,
            each.position,
            each.node_budget,
            each.seed,
            each.least_probability,
            *(() if told is None else (told.draft_id, told.nodes, told.rows)),
        )
    return writer.payload(step_id)


def values_of_answer(answer: CoreAnswer) -> StepResponse:
    """Return the core's decoded response as values."""
    statuses = map(SequenceStatus, answer.statuses)
    sequences = tuple(map(SequenceResponse, statuses, answer.next_positions, answer.drafts, answer.generations))
    return StepResponse(answer.graph_generation, answer.draft_id, sequences, answer.server_time_ns)
