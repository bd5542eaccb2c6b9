"""The administrative methods of a running drafter."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message
from loguru import logger

from speculant_drafter.graphs import GraphRegistry, ServedGraph
from speculant_drafter.service import parsed
from speculant_graph.errors import DraftRequestError, GraphFileError
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.serving.calls import Call, CallInterceptor

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["DrafterAdminService"].full_name
"""Name of the service."""


class DrafterAdminService:
    """Looks after graphs."""

    def __init__(self, graphs: GraphRegistry) -> None:
        """Take what is served."""
        self._graphs = graphs

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return what a server answers the service's methods with."""
        methods: dict[str, tuple[Any, Any]] = {
            "ListGraphs": (pb.ListGraphsRequest, self._list),
            "ReloadGraph": (pb.ReloadGraphRequest, self._reload),
        }
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {name: interceptor.unary(name, self._guarded(name, *method)) for name, method in methods.items()},
        )

    def _guarded(self, name: str, message_class: Any, method: Any) -> Any:
        async def answer(payload: bytes, call: Call) -> bytes:
            call.principal.require_admin()
            try:
                response: Message = await method(parsed(message_class, payload))
            except GraphFileError as error:  # an administrator may read what is wrong with one
                raise DraftRequestError(str(error)) from error
            logger.debug("{} by {}", name, call.principal.name or "an anonymous client")
            return response.SerializeToString()

        return answer

    async def _list(self, _request: pb.ListGraphsRequest) -> pb.ListGraphsResponse:
        return pb.ListGraphsResponse(graphs=[_info(served) for served in self._graphs])

    async def _reload(self, request: pb.ReloadGraphRequest) -> pb.ReloadGraphResponse:
        served = await self._graphs.reload(request.name)
        return pb.ReloadGraphResponse(graph=_info(served))


def _info(served: ServedGraph) -> pb.GraphInfo:
    return pb.GraphInfo(
        name=served.name,
        generation=served.generation,
        corpus_tokens=served.graph.metadata.num_tokens,
        max_order=served.graph.max_order,
        vocabulary_size=served.tokenizer.vocabulary_size,
        tokenizer_sha256=bytes.fromhex(served.tokenizer.sha256),
        tokenizer_name=served.tokenizer.name,
        file_bytes=served.file_bytes,
        open_sessions=served.num_sessions,
    )
