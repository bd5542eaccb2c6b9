"""The administrative methods of a running drafter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from loguru import logger

from speculant_drafter.counts import ServerCounts
from speculant_drafter.graphs import GraphRegistry, ServedGraph
from speculant_drafter.service import parsed
from speculant_drafter.sessions import SessionStore
from speculant_graph.errors import DrafterUnavailableError, DraftRequestError, GraphFileError
from speculant_graph.rpc.convert import duration_of
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.serving.calls import Call, CallInterceptor

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["DrafterAdminService"].full_name
"""Name of the service."""


class DrafterAdminService:
    """Looks after graphs and learned text."""

    def __init__(
        self,
        graphs: GraphRegistry,
        sessions: SessionStore,
        counts: ServerCounts,
        on_change: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a service.

        Args:
            graphs: what is served.
            sessions: what is open.
            counts: what is counted.
            on_change: a coroutine function, called when the served graphs are others.
            clock: monotonic time in seconds.
        """
        self._graphs = graphs
        self._sessions = sessions
        self._counts = counts
        self._on_change = on_change
        self._clock = clock
        self._started_s = clock()

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return what a server answers the service's methods with."""
        methods: dict[str, tuple[Any, Any]] = {
            "ListGraphs": (pb.ListGraphsRequest, self._list),
            "LoadGraph": (pb.LoadGraphRequest, self._load),
            "ReloadGraph": (pb.ReloadGraphRequest, self._reload),
            "UnloadGraph": (pb.UnloadGraphRequest, self._unload),
            "SaveLearnedState": (pb.SaveLearnedStateRequest, self._save),
            "GetStatistics": (pb.GetStatisticsRequest, self._statistics),
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
                raise DraftRequestError(self._graphs.without_folders(str(error))) from error
            logger.debug("{} by {}", name, call.principal.name or "an anonymous client")
            return response.SerializeToString()

        return answer

    async def _list(self, _request: pb.ListGraphsRequest) -> pb.ListGraphsResponse:
        return pb.ListGraphsResponse(graphs=[_info(served) for served in self._graphs])

    async def _load(self, request: pb.LoadGraphRequest) -> pb.LoadGraphResponse:
        served = await self._graphs.load(request.name, request.path)
        await self._on_change()
        return pb.LoadGraphResponse(graph=_info(served))

    async def _reload(self, request: pb.ReloadGraphRequest) -> pb.ReloadGraphResponse:
        served = await self._graphs.reload(request.name, request.path)
        return pb.ReloadGraphResponse(graph=_info(served))

    async def _unload(self, request: pb.UnloadGraphRequest) -> pb.UnloadGraphResponse:
        if not request.name:
            raise DraftRequestError("no graph is named; name the one to unload")
        await self._graphs.unload(request.name)
        await self._on_change()
        return pb.UnloadGraphResponse()

    async def _save(self, request: pb.SaveLearnedStateRequest) -> pb.SaveLearnedStateResponse:
        saved_bytes = await self._graphs.save(request.tenant)
        if self._graphs.is_failing_to_learn:
            raise DrafterUnavailableError("what was learned can't be brought to disk; check its space and permissions")
        return pb.SaveLearnedStateResponse(saved_bytes=saved_bytes)

    async def _statistics(self, _request: pb.GetStatisticsRequest) -> pb.GetStatisticsResponse:
        counts = self._counts
        return pb.GetStatisticsResponse(
            steps=counts.steps,
            sequences=counts.sequences,
            drafted_nodes=counts.drafted_nodes,
            empty_drafts=counts.empty_drafts,
            failed_steps=sum(counts.failed_steps.values()),
            open_sessions=len(self._sessions),
            learned_tokens=self._graphs.learned_tokens,
            uptime=duration_of(self._clock() - self._started_s),
        )


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
