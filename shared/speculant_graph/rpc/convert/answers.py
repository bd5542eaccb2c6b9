"""Answers to steps: drafts and their distributions, read and checked in the core."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from speculant_graph._core import read_answer
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, SpeculantError
from speculant_graph.rpc.messages import SequenceAnswer, SequenceStatus, StepAnswer
from speculant_graph.rpc.status import from_status, status_of_number
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import StrategyName

_STATUSES = {status.value: status for status in SequenceStatus}


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
    return _decoded(payload, budgets, strategy, vocabulary_size, is_enveloped=False)


def decode_stream_answer(
    payload: bytes, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int
) -> StepAnswer:
    """Return the answer in a StreamDraftResponse; see :func:`decode_step_answer`.

    Raises:
        SpeculantError: the step failed, for the reason in the message.
        DraftRequestError: the answer breaks a rule of the wire.
    """
    return _decoded(payload, budgets, strategy, vocabulary_size, is_enveloped=True)


def _decoded(
    payload: bytes, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int, *, is_enveloped: bool
) -> StepAnswer:
    answer = read_answer(payload, is_enveloped, budgets, vocabulary_size, strategy)
    if isinstance(answer, bytes):
        raise _failure_of(answer)
    generation, draft_id, server_time_ns, statuses, next_positions, drafts, generations = answer
    names = [_STATUSES[status] for status in statuses]
    sequences = tuple(map(SequenceAnswer, names, next_positions, drafts, generations))
    return StepAnswer(generation, draft_id, sequences, server_time_ns)


def _failure_of(payload: bytes) -> SpeculantError:
    """Return the error that a StepError stands for."""
    try:
        told = pb.StepError.FromString(payload)
    except DecodeError:
        return DrafterUnavailableError("what answers is no drafter, or a broken one; check the address")
    failure = from_status(status_of_number(told.code), told.message)
    if isinstance(failure, DraftLimitError):
        failure.retry_delay_s = told.retry_delay.ToNanoseconds() / 1e9
    return failure
