"""What a client is made of, from its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from speculant_graph.client.core import ClientCore
from speculant_graph.errors import DraftLimitError, SpeculantError
from speculant_graph.rpc import convert
from speculant_graph.rpc.addresses import split_addresses
from speculant_graph.rpc.channel import Endpoint
from speculant_graph.rpc.messages import OpenRequest, StepRequest
from speculant_graph.rpc.status import from_status
from speculant_graph.types import Fingerprint

if TYPE_CHECKING:
    from speculant_graph.config import ClientConfig, DraftConfig
    from speculant_graph.draft.cost import CostCurve

_STATUS_DETAILS = "grpc-status-details-bin"
"""Where gRPC puts the google.rpc.Status of a unary call that failed."""


def endpoints_of(config: ClientConfig) -> list[Endpoint]:
    """Return the replicas of a client.

    Raises:
        ConfigError: see :func:`~speculant_graph.rpc.channel.split_addresses` and
            :meth:`~speculant_graph.rpc.channel.Endpoint.of`.
    """
    return [Endpoint.of(address, config) for address in split_addresses(config.address)]


def make_core(
    config: ClientConfig,
    *,
    tokenizer: Fingerprint | None,
    draft: DraftConfig,
    wants_proposals: bool,
    cost: CostCurve | None,
) -> ClientCore:
    """Return the core of a client; see :class:`~speculant_graph.client.blocking.DrafterClient`.

    Raises:
        ConfigError: an address is malformed, or a setting is the sidecar's own.
        SpeculantError: the tokenizer's digest is none.
    """
    from speculant_graph.draft.options import options_of  # settings are there, so what they load is, too

    # What is not set is left to the sidecar, but for the strategy, which drafts name.
    options = replace(options_of(draft), strategy=draft.strategy, omit_proposals=not wants_proposals)
    opening = OpenRequest(
        session_id=1,
        tokenizer_sha256=tokenizer.sha256 if tokenizer is not None else "",
        tenant=config.tenant,
        graph=config.graph,
        learn=config.learn,
        cost=cost,
    )
    convert.encode_open_request(opening)  # mistakes show here rather than with the first session, or its steps
    convert.encode_step(None, StepRequest((), options))
    return ClientCore(
        split_addresses(config.address),
        config,
        options=options,
        strategy=draft.strategy,
        opening=opening,
        tokenizer_name=tokenizer.name if tokenizer is not None else "",
    )


def error_of(call: Any) -> SpeculantError:
    """Return the error that a failed call stands for, with the delay that a drafter over its limits sets."""
    error = from_status(call.code(), call.details())
    if isinstance(error, DraftLimitError):
        for key, value, *_ in call.trailing_metadata() or ():
            if key == _STATUS_DETAILS:
                error.retry_delay_s = _retry_delay_s(value)
    return error


def _retry_delay_s(status: bytes) -> float:
    retry = RetryInfo()
    try:
        if any(detail.Unpack(retry) for detail in Status.FromString(status).details):
            return max(float(retry.retry_delay.ToNanoseconds()) * 1e-9, 0.0)
    except DecodeError:  # of a proxy's making
        pass
    return 0.0
