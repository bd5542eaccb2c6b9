"""A sidecar in this process, on real sockets; all such sidecars share one event loop in one thread."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import grpc
import uvloop
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculant_drafter.server import DrafterServer
from speculant_drafter.sessions import Limits
from speculant_graph.config import AccessConfig, ClientConfig, DraftConfig, FoldConfig, ServerConfig
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.rpc.channel import Endpoint
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterAdminServiceStub, DrafterServiceStub
from speculant_graph.types import Fingerprint

T = TypeVar("T")

PATIENCE_S = 240.0
SESSION_IDS = itertools.count(1 << 20)  # far from the ids that tests choose themselves
SERVICE = "speculant_graph.rpc.v1.DrafterService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
OK = pb.SEQUENCE_STATUS_OK
LOST = pb.SEQUENCE_STATUS_SESSION_LOST
OUT_OF_SYNC = pb.SEQUENCE_STATUS_OUT_OF_SYNC


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    # One loop for all servers: gRPC's asyncio API works poorly with several loops in a process.
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
    return loop


def run_in_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the servers' event loop, and wait for its result."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result(PATIENCE_S)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class _WithMetadata(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Sends the same metadata with every call."""

    def __init__(self, metadata: Sequence[tuple[str, str]]) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), request)

    intercept_stream_stream = intercept_unary_unary


@contextmanager
def connected(address: str, *metadata: tuple[str, str], **settings: object) -> Iterator[Wire]:
    """Yield the stubs of an address; ``settings`` are fields of ClientConfig."""
    endpoint = Endpoint.of(address, ClientConfig.model_validate(settings))
    with endpoint.connect() as channel:
        yield Wire(grpc.intercept_channel(channel, _WithMetadata((*endpoint.metadata, *metadata))))


class Wire:
    """Stubs of one channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.drafter = DrafterServiceStub(channel)
        self.admin = DrafterAdminServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    def health(self, name: str = "") -> int:
        """Return the health service's status of a name."""
        return self._health.Check(health_pb2.HealthCheckRequest(service=name)).status

    def watch_health(self, name: str) -> Any:
        """Return the call that streams status changes until it is cancelled."""
        return self._health.Watch(health_pb2.HealthCheckRequest(service=name))

    def open(self, session_id: int | None = None, **fields: Any) -> int:
        """Open a session; return its number."""
        session_id = session_id or next(SESSION_IDS)
        self.drafter.OpenSession(pb.OpenSessionRequest(session_id=session_id, **fields))
        return session_id

    def close(self, session_id: int, tenant: str = "") -> None:
        """Close a session."""
        self.drafter.CloseSession(pb.CloseSessionRequest(session_id=session_id, tenant=tenant))


class LiveServer:
    """A running sidecar and a channel to each of its services."""

    def __init__(self, server: DrafterServer, wire: Wire, admin: Wire | None) -> None:
        self.server = server
        self.address = server.addresses[0]
        self.wire = wire
        self.drafter = wire.drafter
        self.open, self.close = wire.open, wire.close
        self._admin = admin
        self._is_stopped = False

    def stop(self) -> None:
        """Stop it; later calls have no effect."""
        if not self._is_stopped:
            self._is_stopped = True
            run_in_loop(self.server.stop())

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name and labels, such as 'ended_sessions_total{reason="idle"}'."""
        with urllib.request.urlopen(f"http://{self.server.metrics_address}/metrics", timeout=PATIENCE_S) as response:
            lines = response.read().decode().splitlines()
        told = [line.removeprefix("speculant_drafter_").rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in told}

    @property
    def admin(self) -> DrafterAdminServiceStub:
        """Stub of the admin service."""
        assert self._admin is not None
        return self._admin.admin


Serve = Callable[..., LiveServer]
"""Runs a sidecar with given settings."""


@contextmanager
def serving(
    graph_path: Path,
    folder: Path,
    draft: Mapping[str, object] | None = None,
    clock: Callable[[], float] | None = None,
    client: Mapping[str, object] | None = None,
    fold: Mapping[str, object] | None = None,
    **settings: object,
) -> Iterator[LiveServer]:
    """Serve a graph on a socket in a folder, with admin service and metrics.

    Args:
        graph_path: the default graph.
        folder: folder for the sockets.
        draft: fields of DraftConfig.
        clock: clock of the sessions.
        client: fields of ClientConfig, for credentials of the channels.
        fold: fields of FoldConfig.
        settings: fields of ServerConfig, of AccessConfig and of Limits.
    """
    limits = Limits(**{name: settings.pop(name) for name in set(settings) & set(Limits.__slots__)})
    access = AccessConfig.model_validate(
        {name: settings.pop(name) for name in set(settings) & set(AccessConfig.model_fields)}
    )
    config = ServerConfig.model_validate(
        {
            "listen": f"unix://{folder}/drafter.sock",
            "admin_listen": f"unix://{folder}/admin.sock",
            "metrics_listen": "127.0.0.1:0",
            "graph": graph_path,
            **settings,
        }
    )

    async def make() -> DrafterServer:
        drafts, folds = DraftConfig.model_validate(draft or {}), FoldConfig.model_validate(fold or {})
        server = DrafterServer(config, drafts, access, clock or time.monotonic, limits, folds)
        return await server.__aenter__()

    with ExitStack() as stack:
        server = run_in_loop(make())
        wires = [
            stack.enter_context(connected(addresses[0], **(client or {}))) if addresses else None
            for addresses in (server.addresses, server.admin_addresses)
        ]
        assert wires[0] is not None
        running = LiveServer(server, wires[0], wires[1])
        stack.callback(running.stop)
        yield running


def step_of(
    session_id: int = 0,
    tokens: Sequence[int] = (),
    position: int = 0,
    budget: int = 6,
    strategy: int = 0,
    seed: int = 0,
    **fields: Any,
) -> pb.DraftRequest:
    """Return the request of one sequence."""
    if strategy:
        fields["options"] = pb.StrategyOptions(strategy=strategy)
    return pb.DraftRequest(
        session_ids=[session_id],
        positions=[position],
        context_lengths=[len(tokens)],
        context_tokens=tokens,
        node_budgets=[budget],
        seeds=[seed],
        **fields,
    )


def refusal(call: Callable[[Any], Any], request: Any) -> grpc.RpcError:
    """Return the error of a call that must fail."""
    try:
        call(request)
    except grpc.RpcError as error:
        return error
    raise AssertionError("it was not refused")


def code_of(call: Callable[[Any], Any], request: Any) -> grpc.StatusCode:
    """Return the status code of a call that must fail."""
    return refusal(call, request).code()


def retry_delay_s(error: grpc.RpcError) -> float | None:
    """Return the retry delay in a refused unary call's error; None if it has none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = Status.FromString(value)
            assert (status.code, status.message) == (error.code().value[0], error.details())
            (detail,) = status.details
            info = RetryInfo()
            assert detail.Unpack(info)
            return info.retry_delay.ToNanoseconds() / 1e9
    return None


def graph_file(
    path: Path, token_ids: Sequence[int], vocabulary_size: int = 50, sha256: str = "ab" * 32, max_order: int = 4
) -> Path:
    """Write the graph of a text to a file, replacing it atomically."""
    build_from_token_ids(
        list(token_ids), Fingerprint("tests/alphabet", sha256, vocabulary_size), max_order=max_order
    ).save(path)
    return path
