"""What protobuf itself still carries on the stream: why a step failed."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from speculant_graph.errors import DraftLimitError
from speculant_graph.rpc.status import status_number, to_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb


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
