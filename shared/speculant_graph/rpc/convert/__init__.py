"""Messages of the drafter, as bytes, to values of ours and back; the only such mapping.

Every decoder checks what the wire's specification promises and raises :class:`DraftRequestError` with a one-line
reason otherwise; nothing else escapes, whatever the message. What depends on the graph (token ids of a request,
graph names) is left to the caller.
"""

from __future__ import annotations

from speculant_graph.rpc.convert.answers import decode_step_answer, encode_step_answer
from speculant_graph.rpc.convert.requests import decode_step_request, encode_step_request
from speculant_graph.rpc.convert.sessions import (
    decode_open_answer,
    decode_open_request,
    encode_open_answer,
    encode_open_request,
)
from speculant_graph.rpc.convert.stream import (
    StreamAnswer,
    encode_stream_answer,
    encode_stream_failure,
    encode_stream_step,
    read_stream_answer,
    read_stream_step,
)

__all__ = [
    "StreamAnswer",
    "decode_open_answer",
    "decode_open_request",
    "decode_step_answer",
    "decode_step_request",
    "encode_open_answer",
    "encode_open_request",
    "encode_step_answer",
    "encode_step_request",
    "encode_stream_answer",
    "encode_stream_failure",
    "encode_stream_step",
    "read_stream_answer",
    "read_stream_step",
]
