"""Runs a sidecar: starts and stops its sockets, health checks and graphs in order, and reloads its files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from grpc_health.v1 import health, health_pb2
from loguru import logger
from prometheus_client import generate_latest

from speculant_drafter.app import PATH, Explorer, create_app
from speculant_drafter.graphs import GraphRegistry, loading
from speculant_drafter.metrics import ServerMetrics
from speculant_drafter.service import (
    ADMIN_SERVICE_NAME,
    SERVICE_NAME,
    DrafterAdminService,
    DrafterService,
    shutting_down,
)
from speculant_drafter.sessions import LIMITS, Limits, SessionStore
from speculant_drafter.step_socket import StepSockets
from speculant_graph.config import OPEN_ACCESS, AccessConfig, DraftConfig, FoldConfig, ServerConfig
from speculant_graph.draft.learning.learned_files import NO_FOLDS
from speculant_graph.errors import ConfigError, SpeculantError, UnavailableError
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.grpc_endpoint import CallInterceptor, GrpcEndpoint
from speculant_graph.serving.http import HttpServer, HttpThread
from speculant_graph.serving.listening import server_credentials

_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
_SWEEP_S = 5.0
GRACE_S = 5.0
"""Seconds that running calls get to finish when the sidecar stops. On a stop, each stream ends after its current step,
which takes milliseconds."""
_SAVE_S = 2.0
"""Seconds between two saves of learned text."""


class DrafterServer:
    """A sidecar in this event loop; an async context manager that serves inside its block."""

    def __init__(
        self,
        config: ServerConfig,
        draft: DraftConfig,
        access: AccessConfig = OPEN_ACCESS,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits = LIMITS,
        fold: FoldConfig = NO_FOLDS,
    ) -> None:
        """Make a sidecar that does not listen yet.

        Args:
            config: addresses and graphs.
            draft: defaults for options that requests leave out.
            access: the permitted clients.
            clock: monotonic time in seconds; it decides when sessions are idle.
            limits: limits for calls, messages and sessions.
            fold: whether and when learned text is folded into graphs.

        Raises:
            ConfigError: a setting is wrong.
        """
        self._config, self._access, self._limits = config, access, limits
        self._metrics = ServerMetrics()
        policy = AccessPolicy.load(access.file)
        self._interceptor = CallInterceptor(policy, limits.max_calls)
        # Has a separate call limit, so that a full server can still be administered.
        self._admin_interceptor = CallInterceptor(policy, limits.max_calls)
        self._graphs = GraphRegistry(config, draft, fold, self._metrics.on_fold)
        self._warn_of_unserved(policy)
        self._sessions = SessionStore(config, self._metrics, clock, limits)
        self._service = DrafterService(draft, self._graphs, self._sessions, self._metrics, limits)
        self._admin = DrafterAdminService(self._graphs)
        self._step_sockets = StepSockets(self._service, self._interceptor, limits.max_calls, limits.max_message_bytes)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined] # missing in the stubs
        self._health_names = ["", SERVICE_NAME, ADMIN_SERVICE_NAME]
        self._health_names += [f"{SERVICE_NAME}/{name}" for name in self._graphs.configured_names]
        self._credentials = server_credentials(access)
        self._explorer = Explorer(config, access, draft, self._graphs)
        self._http = self._http_thread() if config.metrics_listen else None
        self._endpoints: list[GrpcEndpoint] = []
        self._chores: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self.addresses: list[str] = []
        """Addresses of the drafter service."""
        self.admin_addresses: list[str] = []
        """Addresses of the admin service."""
        self.metrics_address = ""
        """Address of the HTTP server."""
        self.explorer_url = ""
        """URL of the explorer; empty if it is off."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, load the graphs, and serve when they are in memory.

        Raises:
            ConfigError: an address is malformed or taken, or learned text can't be read.
            GraphError: a graph can't be loaded.
        """
        tokenizers = await self._graphs.open_configured()
        await self._tell_health()
        self.addresses = await self._listen(
            self._config.listen, "server.listen", self._service.handler(self._interceptor), SERVICE_NAME
        )
        await self._step_sockets.listen(self.addresses)
        if self._config.admin_listen:
            self.admin_addresses = await self._listen(
                self._config.admin_listen,
                "server.admin_listen",
                self._admin.handler(self._admin_interceptor),
                ADMIN_SERVICE_NAME,
            )
        if self._http is not None:
            self.metrics_address = await self._http.start()
            if self._explorer.is_open:
                self.explorer_url = f"http://{self.metrics_address}{PATH}/"
        await self._explorer.prepare(tokenizers)
        await self._graphs.load_configured()
        await self._tell_health()
        self._chores = [
            asyncio.create_task(self._every(_SWEEP_S, self._sweep)),
            asyncio.create_task(self._every(_SAVE_S, partial(self._graphs.save, is_routine=True))),
        ]
        others = [("admin", address) for address in self.admin_addresses]
        others += [("metrics", self.metrics_address)] if self.metrics_address else []
        others += [("explorer", self.explorer_url)] if self.explorer_url else []
        more = "".join(f"; {what} on {address}" for what, address in others)
        logger.info("drafter ready on {}{}", ", ".join(self.addresses), more)

    async def stop(self) -> None:
        """Report NOT_SERVING, wait for running calls, save learned text, and close all sockets."""
        self._is_stopping = True
        await self._health.enter_graceful_shutdown()
        self._service.drain()
        await self._step_sockets.close()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        await asyncio.gather(*(endpoint.stop(GRACE_S) for endpoint in self._endpoints))
        self._sessions.end_all()
        await self._graphs.close()
        if self._http is not None:
            await self._http.close()
        await asyncio.to_thread(self._explorer.close)
        for endpoint in self._endpoints:
            endpoint.close()

    async def force_stop(self) -> None:
        """Cancel running calls at once."""
        await asyncio.gather(*(endpoint.force_stop() for endpoint in self._endpoints))

    async def reload(self) -> None:
        """Read the access file and all graphs again; an error is logged, and the old version stays in use."""
        try:
            policy = AccessPolicy.load(self._access.file)
            self._interceptor.policy = self._admin_interceptor.policy = policy
            self._warn_of_unserved(policy)
        except ConfigError as error:
            logger.error("the access file is not reloaded: {}", error)
        await self._graphs.reload_all()

    def _warn_of_unserved(self, policy: AccessPolicy) -> None:
        if unserved := sorted(policy.named_graphs() - set(self._graphs.configured_names)):
            logger.warning(
                "the access file permits graphs that this sidecar does not serve: {}; correct their names, or ignore "
                "this if other sidecars serve them", ", ".join(map(repr, unserved)),
            )  # fmt: skip

    async def _listen(self, addresses: str, option: str, handler: Any, name: str) -> list[str]:
        endpoint = GrpcEndpoint(
            self._access,
            self._credentials,
            self._health,
            [handler],
            name,
            max_calls=self._limits.max_calls,
            max_message_bytes=self._limits.max_message_bytes,
        )
        self._endpoints.append(endpoint)
        return await endpoint.listen(addresses, option)

    async def _tell_health(self) -> None:
        """Set the health status of the services and of every graph."""
        for name in self._health_names:
            await self._health.set(name, _SERVING if self._graphs.is_ready else _NOT_SERVING)

    async def _every(self, interval_s: float, chore: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await chore()
            except SpeculantError as error:
                logger.error("{}", error)
            except Exception:
                logger.exception("a periodic task failed")

    async def _sweep(self) -> None:
        self._sessions.sweep()

    def _http_thread(self) -> HttpThread:
        app = create_app(self._explorer, lambda: self._interceptor.policy, self._render_metrics, self._problem)
        return HttpThread(HttpServer(app, self._config.metrics_listen, "server.metrics_listen"))

    def _render_metrics(self) -> bytes:
        metrics, num_sessions = self._metrics, self._sessions.num_by_graph()
        for graph in self._graphs:
            metrics.open_sessions.labels(graph.name).set(num_sessions[graph.name])
            metrics.graph_generation.labels(graph.name).set(graph.generation)
        metrics.session_bytes.set(self._sessions.table.num_bytes)
        metrics.learned_tokens.set(self._graphs.learned_tokens)
        metrics.learned_failing.set(self._graphs.is_failing_to_learn)
        return generate_latest(metrics.registry)

    def _problem(self) -> UnavailableError | None:
        if self._is_stopping:
            return shutting_down()
        return None if self._graphs.is_ready else loading()
