"""The gRPC methods for operators of a running verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from loguru import logger

from speculant_graph.errors import ConfigError, DraftRequestError, UnservedRequestError
from speculant_graph.rpc.convert import duration_of
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.serving.grpc_endpoint import Call, CallInterceptor
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapters import Adapter, Adapters
from speculant_verifier.service.service import parsed

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VerifierAdminService"].full_name
"""Name of the service."""


class VerifierAdminService:
    """Looks after the draft model's adapters."""

    def __init__(self, read_decoder: Callable[[], SpeculativeDecoder]) -> None:
        """Make a service.

        Args:
            read_decoder: returns what decodes; raises while there is none.
        """
        self._read_decoder = read_decoder

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return what a server answers the service's methods with."""
        methods: dict[str, tuple[Any, Any, Any]] = {
            "ListAdapters": (pb.ListAdaptersRequest, _list, pb.ListAdaptersResponse),
            "LoadAdapter": (pb.LoadAdapterRequest, _load, pb.LoadAdapterResponse),
            "RollbackAdapter": (pb.RollbackAdapterRequest, _rollback, pb.RollbackAdapterResponse),
        }
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {name: interceptor.unary(name, self._guarded(name, *method)) for name, method in methods.items()},
        )

    def _guarded(self, name: str, request_class: Any, method: Any, response_class: Any) -> Any:
        async def answer(payload: bytes, call: Call) -> bytes:
            call.principal.require_admin()
            adapters = self._read_decoder().adapters
            if adapters is None:
                raise UnservedRequestError("the verifier has no draft model; start it with --draft-model")
            try:
                await method(adapters, parsed(request_class, payload))
            except ConfigError as error:
                raise DraftRequestError(str(error)) from error
            logger.debug("{} by {}", name, call.principal.name or "anybody")
            response: Message = response_class(state=_state(adapters))
            return response.SerializeToString()

        return answer


async def _list(_adapters: Adapters, _request: pb.ListAdaptersRequest) -> None:
    """Do nothing: every answer holds what drafts."""


async def _load(adapters: Adapters, request: pb.LoadAdapterRequest) -> None:
    """Load an adapter by its name: an operator does not choose what it reads of its machine."""
    if request.name and request.name not in adapters.names:
        known = ", ".join(adapters.names) or "none, name some by draft_model.adapters"
        raise DraftRequestError(f"there is no adapter of this name; those of the settings are: {known}")
    await asyncio.to_thread(adapters.load, request.name)


async def _rollback(adapters: Adapters, _request: pb.RollbackAdapterRequest) -> None:
    await asyncio.to_thread(adapters.rollback)


def _state(adapters: Adapters) -> pb.DraftModelState:
    state = adapters.state
    return pb.DraftModelState(
        names=adapters.names,
        present=_adapter(state.present),
        previous=None if state.previous is None else _adapter(state.previous),
        acceptance=state.acceptance,
        judged_tokens=state.num_judged,
        previous_acceptance=state.previous_acceptance,
        passes=state.num_passes,
        passes_time=duration_of(state.passes_s),
    )


def _adapter(adapter: Adapter) -> pb.Adapter:
    return pb.Adapter(name=adapter.name, sha256=bytes.fromhex(adapter.digest))
