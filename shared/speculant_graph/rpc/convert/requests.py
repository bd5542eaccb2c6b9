"""Steps: what a client asks."""

from __future__ import annotations

from speculant_graph._core import write_request
from speculant_graph.rpc.convert.options import encode_options
from speculant_graph.rpc.messages import StepRequest


def encode_step_request(request: StepRequest) -> bytes:
    """Return the DraftRequest for ``request``; arrays that hold nothing but defaults stay empty.

    Raises:
        DraftRequestError: a number does not fit into its field, or budgets are mixed.
    """
    return write_request(request.graph.encode(), encode_options(request.options), request.sequences, None)


def encode_stream_step(step_id: int, request: StepRequest) -> bytes:
    """Return the StreamDraftRequest of a step.

    Raises:
        DraftRequestError: the step can't travel.
    """
    return write_request(request.graph.encode(), encode_options(request.options), request.sequences, step_id)
