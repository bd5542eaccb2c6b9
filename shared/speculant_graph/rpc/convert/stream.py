"""Steps as they travel on the stream: an envelope with a step id round a request or an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, DraftRequestError, SpeculantError
from speculant_graph.rpc import mirror
from speculant_graph.rpc.convert.answers import decode_step_answer
from speculant_graph.rpc.convert.requests import encode_step_request
from speculant_graph.rpc.messages import StepAnswer, StepRequest
from speculant_graph.rpc.status import from_status, status_number, status_of_number, to_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import StrategyName


def encode_stream_step(step_id: int, request: StepRequest) -> bytes:
    """Return the StreamDraftRequest of a step.

    Raises:
        DraftRequestError: the step can't travel.
    """
    payload: bytes = mirror.StreamDraftRequest(
        step_id=step_id, draft=[encode_step_request(request)]
    ).SerializeToString()
    return payload


def read_stream_step(payload: bytes) -> tuple[int, bytes]:
    """Return the step id and the DraftRequest of a StreamDraftRequest.

    Raises:
        DraftRequestError: it is no such message.
    """
    try:
        message = mirror.StreamDraftRequest.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the message can't be parsed; send one of this service's protocol") from None
    drafts = message.draft
    return message.step_id, drafts[0] if len(drafts) == 1 else b"".join(drafts)


def encode_stream_answer(step_id: int, answer: bytes) -> bytes:
    """Return the StreamDraftResponse round a DraftResponse."""
    payload: bytes = mirror.StreamDraftResponse(step_id=step_id, draft=[answer]).SerializeToString()
    return payload


def encode_stream_failure(step_id: int, error: BaseException) -> bytes:
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


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """A StreamDraftResponse of which only the step id has been looked at."""

    step_id: int
    """The step that is answered."""
    draft: bytes = b""
    """The DraftResponse, if there is no ``failure``."""
    failure: SpeculantError | None = None
    """Why the step failed."""

    def decode(self, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int) -> StepAnswer:
        """Return the answer; see :func:`~speculant_graph.rpc.convert.answers.decode_step_answer`.

        Raises:
            SpeculantError: the step failed, for the reason in the message.
            DraftRequestError: the answer breaks a rule of the wire.
        """
        if self.failure is not None:
            raise self.failure
        return decode_step_answer(self.draft, budgets=budgets, strategy=strategy, vocabulary_size=vocabulary_size)


def read_stream_answer(payload: bytes) -> StreamAnswer:
    """Return the answer that ``payload`` holds.

    Raises:
        DrafterUnavailableError: it is no message of this protocol.
    """
    try:
        message = mirror.StreamDraftResponse.FromString(payload)
        if len(message.draft) == 1 and not message.error:
            return StreamAnswer(message.step_id, message.draft[0])
        # A failure, or both, of which the later counts: the public class knows.
        public = pb.StreamDraftResponse.FromString(payload)
    except DecodeError:
        raise DrafterUnavailableError("what answers is no drafter, or a broken one; check the address") from None
    if public.WhichOneof("outcome") == "draft":
        return StreamAnswer(public.step_id, public.draft.SerializeToString())
    failure = from_status(status_of_number(public.error.code), public.error.message)
    if isinstance(failure, DraftLimitError):
        failure.retry_delay_s = public.error.retry_delay.ToNanoseconds() / 1e9
    return StreamAnswer(public.step_id, failure=failure)
