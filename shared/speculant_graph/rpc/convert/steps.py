"""Steps: what a client requests and what the server answers; but for failures read, written and checked in the core."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from speculant_graph._core import read_answer, write_request
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, SpeculantError
from speculant_graph.rpc.convert.options import encode_options
from speculant_graph.rpc.messages import SequenceAnswer, SequenceStatus, StepAnswer, StepRequest
from speculant_graph.rpc.status import from_status, status_number, status_of_number, to_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import StrategyName

_STATUSES = {status.value: status for status in SequenceStatus}


def encode_step(step_id: int | None, request: StepRequest) -> bytes:
    """Return the StreamDraftRequest of a step, or without an id the DraftRequest alone.

    Arrays that hold nothing but defaults stay empty.

    Raises:
        DraftRequestError: a number does not fit into its field, or budgets are mixed.
    """
    return write_request(request.graph.encode(), encode_options(request.options), request.sequences, step_id)


def decode_step_answer(
    payload: bytes,
    *,
    budgets: Sequence[int],
    strategy: StrategyName,
    vocabulary_size: int,
    is_enveloped: bool = True,
) -> StepAnswer:
    """Return the answer to a step.

    Args:
        payload: the StreamDraftResponse, or the DraftResponse alone.
        budgets: most nodes asked for, per sequence.
        strategy: the strategy asked for.
        vocabulary_size: drafted token ids and those of q must be below it.
        is_enveloped: which of the two messages it is.

    Raises:
        SpeculantError: the step failed, for the reason in the message.
        DraftRequestError: the answer breaks a rule of the wire. A draft that passes can be verified safely.
    """
    answer = read_answer(payload, is_enveloped, budgets, vocabulary_size, strategy)
    if isinstance(answer, bytes):
        raise _failure_of(answer)
    generation, draft_id, server_time_ns, statuses, next_positions, drafts, generations = answer
    names = [_STATUSES[status] for status in statuses]
    sequences = tuple(map(SequenceAnswer, names, next_positions, drafts, generations))
    return StepAnswer(generation, draft_id, sequences, server_time_ns)


def encode_step_failure(step_id: int, error: BaseException) -> bytes:
    """Return the StreamDraftResponse of a step that failed, without any text that is not ours."""
    code, message = to_status(error)
    failure = pb.StepError(code=status_number(code), message=message)
    if isinstance(error, DraftLimitError):
        failure.retry_delay.CopyFrom(duration_of(error.retry_delay_s))
    return pb.StreamDraftResponse(step_id=step_id, error=failure).SerializeToString()


def duration_of(seconds: float) -> Duration:
    """Return seconds as a protobuf Duration."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _failure_of(payload: bytes) -> SpeculantError:
    """Return the error that a StepError stands for."""
    try:
        failed = pb.StepError.FromString(payload)
    except DecodeError:
        return DrafterUnavailableError("what answers is no drafter, or a broken one; check the address")
    error = from_status(status_of_number(failed.code), failed.message)
    if isinstance(error, DraftLimitError):
        error.retry_delay_s = failed.retry_delay.ToNanoseconds() / 1e9
    return error
