"""Steps as they travel on the stream: an envelope with a step id round a request or an answer."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, DraftRequestError
from speculant_graph.rpc import mirror
from speculant_graph.rpc.convert.answers import decode_step_answer
from speculant_graph.rpc.convert.requests import encode_step_request
from speculant_graph.rpc.messages import StepAnswer, StepRequest
from speculant_graph.rpc.status import from_status, status_number, status_of_number, to_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import StrategyName

_STEP_ID_TAG, _STEP_ID_END = b"\x09", 9
_NEXT_TAGS = (b"\x12", b"\x1a")
"""Of the answer, and of the failure: what follows the step id, and is no second one."""


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


class StreamAnswer:
    """A StreamDraftResponse of which only the step id has been looked at."""

    __slots__ = ("_payload", "step_id")

    def __init__(self, step_id: int, payload: bytes) -> None:
        """Take a message."""
        self.step_id = step_id
        """The step that is answered."""
        self._payload = payload

    def decode(self, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int) -> StepAnswer:
        """Return the answer; see :func:`~speculant_graph.rpc.convert.answers.decode_step_answer`.

        Raises:
            SpeculantError: the step failed, for the reason in the message.
            DraftRequestError: the answer breaks a rule of the wire.
        """
        draft = _draft_of(self._payload)
        return decode_step_answer(draft, budgets=budgets, strategy=strategy, vocabulary_size=vocabulary_size)


def read_stream_answer(payload: bytes) -> StreamAnswer:
    """Return the answer that ``payload`` holds.

    Raises:
        DrafterUnavailableError: it is no message of this protocol.
    """
    if (
        payload[:1] == _STEP_ID_TAG
        and len(payload) >= _STEP_ID_END
        and payload[_STEP_ID_END : _STEP_ID_END + 1] in _NEXT_TAGS
    ):
        return StreamAnswer(int.from_bytes(payload[1:_STEP_ID_END], "little"), payload)
    try:
        return StreamAnswer(mirror.StreamDraftResponse.FromString(payload).step_id, payload)
    except DecodeError:
        raise _no_drafter() from None


def _draft_of(payload: bytes) -> bytes:
    """Return the DraftResponse of a StreamDraftResponse, or raise the failure that it holds."""
    try:
        message = mirror.StreamDraftResponse.FromString(payload)
        if len(message.draft) == 1 and not message.error:
            draft: bytes = message.draft[0]
            return draft
        # A failure, or both, of which the later counts: the public class knows.
        public = pb.StreamDraftResponse.FromString(payload)
    except DecodeError:
        raise _no_drafter() from None
    if public.WhichOneof("outcome") == "draft":
        return public.draft.SerializeToString()
    failure = from_status(status_of_number(public.error.code), public.error.message)
    if isinstance(failure, DraftLimitError):
        failure.retry_delay_s = public.error.retry_delay.ToNanoseconds() / 1e9
    raise failure


def _no_drafter() -> DrafterUnavailableError:
    return DrafterUnavailableError("what answers is no drafter, or a broken one; check the address")
