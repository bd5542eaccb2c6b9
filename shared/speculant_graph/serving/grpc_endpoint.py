"""A gRPC server on some addresses, with health and reflection, as all servers of this project have it."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from speculant_graph.config import EndpointConfig
from speculant_graph.rpc.channel import message_limits
from speculant_graph.serving.credentials import warn_of_exposure
from speculant_graph.serving.listening import Listener

_HANDSHAKE_TIMEOUT_MS = 5_000
_KEEPALIVE_MS = 30_000


class GrpcEndpoint:
    """One server, from its first address to the end of its last call."""

    def __init__(
        self,
        config: EndpointConfig,
        credentials: grpc.ServerCredentials | None,
        health_service: health.aio.HealthServicer,  # type: ignore[name-defined] # missing in the stubs
        handlers: Sequence[grpc.GenericRpcHandler[bytes, bytes]],
        service_name: str,
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            config: limits.
            credentials: TLS of TCP addresses; None serves them in the clear. Unix sockets always are.
            health_service: reports what is served.
            handlers: answer the service's methods.
            service_name: the service's, for reflection.
        """
        self._config = config
        self._server = grpc.aio.server(
            options=[
                # With SO_REUSEPORT a second server on the same port would silently take half of the connections.
                ("grpc.so_reuseport", 0),
                # A client that connects and sends nothing is disconnected.
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.max_concurrent_streams", config.max_concurrent_rpcs),
                *message_limits(config.max_message_bytes),
            ],
        )
        self._server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(health_service, self._server)
        names = [service_name, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)
        self._listener = Listener(self._server, credentials)

    async def listen(self, addresses: str, option: str) -> list[str]:
        """Serve on addresses, separated by commas; return them with the ports that were given for port 0.

        Args:
            addresses: to be served on.
            option: of the command line, which sets them.

        Raises:
            ConfigError: one is malformed or taken.
        """
        bound = self._listener.bind(addresses, option)
        warn_of_exposure(self._config, bound)
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; end those that run after a while."""
        await self._server.stop(grace_s)

    async def force_stop(self) -> None:
        """End the calls that :meth:`stop` waits for."""
        await self._server.stop(None)

    def close(self) -> None:
        """Remove sockets and locks; the server must have stopped."""
        self._listener.close()
