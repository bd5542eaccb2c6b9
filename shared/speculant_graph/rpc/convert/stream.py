"""Steps as they travel on the stream: bytes out, bytes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from speculant_graph.errors import DrafterUnavailableError, DraftLimitError
from speculant_graph.rpc.convert.answers import decode_step_answer
from speculant_graph.rpc.convert.requests import encode_step_request
from speculant_graph.rpc.messages import StepAnswer, StepRequest
from speculant_graph.rpc.status import from_status, status_of_number
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import StrategyName


def encode_stream_step(step_id: int, request: StepRequest) -> bytes:
    """Return the StreamDraftRequest of a step."""
    return pb.StreamDraftRequest(step_id=step_id, draft=encode_step_request(request)).SerializeToString()


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """A StreamDraftResponse of which only the step id has been looked at."""

    step_id: int
    """The step that is answered."""
    message: pb.StreamDraftResponse
    """What came."""

    def decode(self, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int) -> StepAnswer:
        """Return the answer; see :func:`~speculant_graph.rpc.convert.answers.decode_step_answer`.

        Raises:
            SpeculantError: the step failed, for the reason in the message.
            DraftRequestError: the answer breaks a rule of the wire.
        """
        if self.message.WhichOneof("outcome") != "draft":
            error = from_status(status_of_number(self.message.error.code), self.message.error.message)
            if isinstance(error, DraftLimitError):
                error.retry_delay_s = self.message.error.retry_delay.ToTimedelta().total_seconds()
            raise error
        return decode_step_answer(
            self.message.draft, budgets=budgets, strategy=strategy, vocabulary_size=vocabulary_size
        )


def read_stream_answer(payload: bytes) -> StreamAnswer:
    """Return the answer that ``payload`` holds.

    Raises:
        DrafterUnavailableError: it is no message of this protocol.
    """
    try:
        message = pb.StreamDraftResponse.FromString(payload)
    except DecodeError:
        raise DrafterUnavailableError("what answers is no drafter, or a broken one; check the address") from None
    return StreamAnswer(message.step_id, message)
