"""A gRPC server on some addresses, with health and reflection, as all servers of this project have it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from speculant_graph.config import AccessConfig
from speculant_graph.rpc.addresses import grpc_target, socket_path
from speculant_graph.rpc.channel import message_limits
from speculant_graph.serving.credentials import warn_of_exposure
from speculant_graph.serving.listening import bind_tcp, failure_of, lock_socket

_HANDSHAKE_TIMEOUT_MS = 5_000
_KEEPALIVE_MS = 30_000


class GrpcEndpoint:
    """One server, from its first address to the end of its last call."""

    def __init__(
        self,
        access: AccessConfig,
        credentials: grpc.ServerCredentials | None,
        health_service: health.aio.HealthServicer,  # type: ignore[name-defined] # missing in the stubs
        handlers: Sequence[grpc.GenericRpcHandler[bytes, bytes]],
        service_name: str,
        *,
        max_calls: int,
        max_message_bytes: int,
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            access: which clients may call, for warnings.
            credentials: TLS of TCP addresses; None serves them in the clear. Unix sockets always are.
            health_service: reports what is served.
            handlers: answer the service's methods.
            service_name: the service's, for reflection.
            max_calls: most calls over one connection.
            max_message_bytes: largest message taken or sent.
        """
        self._access, self._credentials = access, credentials
        self._paths: list[Path] = []
        self._locks: list[int] = []
        self._server = grpc.aio.server(
            options=[
                # With SO_REUSEPORT a second server on the same port would silently take half of the connections.
                ("grpc.so_reuseport", 0),
                # A client that connects and sends nothing is disconnected.
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.max_concurrent_streams", max_calls),
                *message_limits(max_message_bytes),
            ],
        )
        self._server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(health_service, self._server)
        names = [service_name, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)

    async def listen(self, addresses: str, option: str) -> list[str]:
        """Serve on addresses, separated by commas; return them with the ports that were given for port 0.

        Args:
            addresses: to be served on.
            option: of the command line, which sets them.

        Raises:
            ConfigError: one is malformed, or something else serves there; those before it are bound.
        """
        bound = [self._bind(address.strip(), option) for address in addresses.split(",")]
        warn_of_exposure(self._access, bound)
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
        for path in self._paths:
            path.unlink(missing_ok=True)
        for lock in self._locks:
            os.close(lock)
        self._paths, self._locks = [], []

    def _bind(self, address: str, option: str) -> str:
        path = socket_path(address)
        # A client that can connect can draft and open sessions: only this user's may.
        previous_mask = os.umask(0o077)
        try:
            if path is not None:
                self._locks.append(lock_socket(path, option))
            if path is None and self._credentials is not None:
                port = self._server.add_secure_port(grpc_target(address), self._credentials)
            else:
                port = self._server.add_insecure_port(grpc_target(address))
        except (RuntimeError, OSError) as error:
            if path is None:
                bind_tcp(address, option).close()  # raises with the reason, which gRPC does not
                raise failure_of(address, "it was in use; try again, or choose another", option) from error
            reason = (
                f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else "no socket can be made there"
            )
            raise failure_of(address, f"{reason}; choose another path", option) from error
        finally:
            os.umask(previous_mask)
        if path is None:
            return f"{address.rpartition(':')[0]}:{port}"
        self._paths.append(path)
        return address
