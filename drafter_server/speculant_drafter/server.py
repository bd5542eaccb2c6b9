"""The sidecar's process: socket, health, signals, and the order in which they come and go."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from loguru import logger

from speculant_drafter.interceptors import ErrorInterceptor
from speculant_drafter.service import SERVICE_NAME, DrafterService
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc.channel import grpc_target, message_limits, socket_path
from speculant_graph.rpc.convert import require_served
from speculant_graph.rpc.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server

_CONNECT_TIMEOUT_S = 1.0


def run_server(config: ServerConfig, draft: DraftConfig) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status, 0.

    Args:
        config: address, graph file and limits.
        draft: what requests leave to the server.

    Raises:
        ConfigError: the address is malformed or taken, or the strategy is not served.
        GraphError: the graph can't be loaded.
    """
    require_served(draft.strategy)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(config, draft))
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


async def _serve(config: ServerConfig, draft: DraftConfig) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    service = DrafterService(config, draft)
    health_service = health.aio.HealthServicer()  # type: ignore[attr-defined] # missing in the stubs
    for name in ("", SERVICE_NAME):
        await health_service.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    server = grpc.aio.server(
        interceptors=[ErrorInterceptor()],
        # With SO_REUSEPORT a second server on the same port would silently take half of the connections.
        options=[("grpc.so_reuseport", 0), *message_limits(config.max_message_bytes)],
    )
    add_DrafterServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    address = _bind(server, config.listen)
    await server.start()
    try:
        # Verifying reads the whole file, so that no draft waits for a disk later.
        graph = await asyncio.to_thread(NgramGraph.load, config.graph, verify=True)
        await asyncio.to_thread(graph.warm_up)
        service.serve(graph)
        for name in ("", SERVICE_NAME):
            await health_service.set(name, health_pb2.HealthCheckResponse.SERVING)
        logger.info("drafter ready on {}, serving {}", address, config.graph)
        await stopping.wait()
        logger.info("drafter stopping")
    finally:
        await health_service.enter_graceful_shutdown()
        service.drain()
        await server.stop(config.grace_s)
        path = socket_path(config.listen)
        if path is not None:
            path.unlink(missing_ok=True)


def _bind(server: grpc.aio.Server, address: str) -> str:
    """Bind ``server`` and return the address it is reached at.

    Raises:
        ConfigError: the address is malformed, or something else serves there.
    """
    target = grpc_target(address)
    path = socket_path(address)
    # Whoever can connect can draft and open sessions: nobody but this user.
    previous_mask = os.umask(0o077)
    try:
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _clear_stale_socket(path)
        port = server.add_insecure_port(target)
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"can't listen on {address}: in use or not writable; choose another") from error
    finally:
        os.umask(previous_mask)
    return address if path is not None else f"{address.rpartition(':')[0]}:{port}"


def _clear_stale_socket(path: Path) -> None:
    """Remove the socket that a killed server left behind.

    gRPC would bind over any socket file and so take the address away from a server that lives.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # a full backlog or a lack of rights: somebody is there
    raise ConfigError(f"another server answers on unix://{path}; stop it or choose another path")
