"""Messages of the drafter, as bytes, to values of ours and back; the only such mapping.

Steps are read and written in the core, everything rarer by protobuf. Every decoder checks what the wire's specification
guarantees and raises :class:`DraftRequestError` with a one-line reason otherwise; nothing else escapes, whatever the
message. What depends on the graph (token ids of a request, graph names) is left to the caller.
"""

from __future__ import annotations

from speculant_graph._core import read_answer_step_id, read_step_id
from speculant_graph.rpc.convert.options import decode_options
from speculant_graph.rpc.convert.sessions import (
    decode_open_answer,
    decode_open_request,
    encode_open_answer,
    encode_open_request,
)
from speculant_graph.rpc.convert.steps import decode_step_answer, duration_of, encode_step, encode_step_failure

__all__ = [
    "decode_open_answer",
    "decode_open_request",
    "decode_options",
    "decode_step_answer",
    "duration_of",
    "encode_open_answer",
    "encode_open_request",
    "encode_step",
    "encode_step_failure",
    "read_answer_step_id",
    "read_step_id",
]
