"""gRPC code that all servers share: an interceptor for every call, and a server with health and reflection.

The interceptor determines a call's client and id, checks capacity, and turns an error into one line. Methods take and
return bytes, so that this project's code parses the messages. gRPC thus never sends the text of a Python exception.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from loguru import logger

from speculant_graph.config import AccessConfig
from speculant_graph.errors import OverloadError
from speculant_graph.rpc.addresses import grpc_target, socket_path
from speculant_graph.rpc.channel import message_limits
from speculant_graph.rpc.convert import duration_of
from speculant_graph.rpc.status import STATUS_DETAILS, advised_delay_s, to_status
from speculant_graph.rpc.step_messages import VERSION_KEY
from speculant_graph.serving.access import REQUEST_ID_KEY, AccessPolicy, Principal, request_id_of
from speculant_graph.serving.listening import bind_tcp, certificate_names, failure_of, lock_socket, warn_of_exposure
from speculant_graph.version import VERSION

_BUSY_S = 0.1
_AUTHORIZATION = "authorization"
_HANDSHAKE_TIMEOUT_MS = 5_000
_KEEPALIVE_MS = 30_000
_LEAST_PING_MS = 5_000
"""Minimum time between two keepalive pings of a client, in milliseconds, even if the client has no running call. The
documentation tells clients to wait 10 s between pings; the difference allows for late timers. With gRPC's own limits of
five minutes and two hours, connections of clients with usual settings would end."""


@dataclass(frozen=True, slots=True)
class Call:
    """One running call."""

    principal: Principal
    """The client."""
    context: Any
    """gRPC's context of the call."""


Method = Callable[[Any, Call], Awaitable[Any]]
"""Function that serves a call; its first argument is the request in bytes (unused for a stream of requests). The
function returns the bytes of the response, or writes responses to the call's context."""


class CallInterceptor:
    """Admits calls of known clients, up to a maximum number of concurrent calls."""

    def __init__(self, policy: AccessPolicy, max_concurrent: int) -> None:
        """Make an interceptor.

        Args:
            policy: the clients that may call.
            max_concurrent: maximum number of concurrent calls, including streams.
        """
        self.policy = policy
        self._max_concurrent = max_concurrent
        self._num_running = 0
        self.ended: Counter[tuple[str, str]] = Counter()
        """Number of finished calls, including refused calls, by method and status name."""

    def unary(self, name: str, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of a method with one request and one response."""
        return grpc.unary_unary_rpc_method_handler(self._intercepted(name, method))

    def answers(self, name: str, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of a method with one request and a stream of responses."""
        return grpc.unary_stream_rpc_method_handler(self._intercepted(name, method))

    def stream(self, name: str, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of a method with a stream of requests and a stream of responses."""
        return grpc.stream_stream_rpc_method_handler(self._intercepted(name, method))

    def _intercepted(self, name: str, method: Method) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            try:
                with self._admitted(name, context) as call:
                    return await method(request, call)
            except Exception as error:
                await _abort(context, error)

        return answer

    @contextmanager
    def _admitted(self, name: str, context: Any) -> Iterator[Call]:
        metadata = context.invocation_metadata()
        request_id = request_id_of(metadata)
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
        self._num_running += 1
        code = grpc.StatusCode.OK
        try:
            with logger.contextualize(request_id=request_id, method=name):
                try:
                    self._require_capacity()
                    principal = self._principal(context, metadata)
                    context.set_trailing_metadata(((REQUEST_ID_KEY, request_id), (VERSION_KEY, VERSION)))
                    yield Call(principal, context)
                except Exception as error:
                    code = log_failure(name, error)
                    raise
                except asyncio.CancelledError:
                    code = grpc.StatusCode.CANCELLED
                    raise
        finally:
            self._num_running -= 1
            self.ended[name, code.name] += 1

    def _require_capacity(self) -> None:
        if self._num_running > self._max_concurrent:
            raise OverloadError(
                f"{self._max_concurrent} calls are running; try again in {_BUSY_S} s, or send steps on one stream",
                _BUSY_S,
            )

    def _principal(self, context: Any, metadata: Any) -> Principal:
        if self.policy.is_open:
            return self.policy.authenticate(None, ())
        header = next((value for key, value in metadata or () if key == _AUTHORIZATION), None)
        return self.policy.authenticate(header, certificate_names(context.auth_context()))


async def _abort(context: Any, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    code, message = to_status(error)
    trailing = tuple(context.trailing_metadata() or ())
    if (delay_s := advised_delay_s(error)) is not None:
        details = AnyMessage()
        details.Pack(RetryInfo(retry_delay=duration_of(delay_s)))
        status = Status(code=code.value[0], message=message, details=[details])
        trailing = (*trailing, (STATUS_DETAILS, status.SerializeToString()))
    await context.abort(code, message, trailing)
    raise AssertionError("abort raises")


def log_failure(method: str, error: Exception) -> grpc.StatusCode:
    """Log a failed call or step: our own failures as errors with a traceback, a client's mistakes at level DEBUG."""
    code, _ = to_status(error)
    if code is grpc.StatusCode.INTERNAL:
        logger.opt(exception=error).error("{} failed", method)
    else:
        logger.debug("{}: {}: {}", method, code.name, error)
    return code


class GrpcEndpoint:
    """One gRPC server, from its first address to the end of its last call."""

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
            access: the access settings, for warnings about exposed addresses.
            credentials: TLS credentials for TCP addresses; with None, TCP connections are not encrypted. Unix sockets
                are never encrypted.
            health_service: the service that reports the health of the served names.
            handlers: handlers of the service's methods.
            service_name: the service's name, as gRPC reflection reports it.
            max_calls: maximum number of concurrent calls over one connection.
            max_message_bytes: largest message to receive or send, in bytes.
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
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
                ("grpc.max_concurrent_streams", max_calls),
                *message_limits(max_message_bytes),
            ],
        )
        self._server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(health_service, self._server)
        names = [service_name, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)

    async def listen(self, addresses: str, option: str) -> list[str]:
        """Start serving on the addresses; return them, with the chosen port in place of each port 0.

        Args:
            addresses: the addresses, separated by commas.
            option: the setting's name.

        Raises:
            ConfigError: an address is malformed or in use; earlier addresses in the list stay bound.
        """
        bound = [self._bind(address.strip(), option) for address in addresses.split(",")]
        warn_of_exposure(self._access, bound)
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and cancel running ones after a grace period."""
        await self._server.stop(grace_s)

    async def force_stop(self) -> None:
        """Cancel the running calls for which :meth:`stop` waits."""
        await self._server.stop(None)

    def close(self) -> None:
        """Remove the socket files, and release their locks; the server must have stopped."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        for lock in self._locks:
            os.close(lock)
        self._paths, self._locks = [], []

    def _bind(self, address: str, option: str) -> str:
        path = socket_path(address)
        # Every client that can connect can draft and open sessions, so only processes of this user may connect.
        previous_mask = os.umask(0o077)
        try:
            if path is not None:
                self._locks.append(lock_socket(path, option))
            else:
                bind_tcp(address, option).close()  # gRPC gives no reason, and accepts any one of a name's addresses
            if path is None and self._credentials is not None:
                port = self._server.add_secure_port(grpc_target(address), self._credentials)
            else:
                port = self._server.add_insecure_port(grpc_target(address))
        except (RuntimeError, OSError) as error:
            if path is None:
                raise failure_of(address, "it was in use; try again, or choose another", option) from error
            reason = (
                f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else "can't create a socket there"
            )
            raise failure_of(address, f"{reason}; choose another path", option) from error
        finally:
            os.umask(previous_mask)
        if path is None:
            return f"{address.rpartition(':')[0]}:{port}"
        self._paths.append(path)
        return address
