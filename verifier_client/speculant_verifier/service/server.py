"""The verifier as a server: starts and stops the sockets, the health service and the model in the right order."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Self

from grpc_health.v1 import health, health_pb2
from loguru import logger
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from speculant_graph.config import OPEN_ACCESS, AccessConfig, GenerationConfig, ServiceConfig
from speculant_graph.errors import ConfigError, UnavailableError
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.grpc_endpoint import CallInterceptor, GrpcEndpoint
from speculant_graph.serving.http import METRICS_TYPE, HttpServer
from speculant_graph.serving.listening import server_credentials, tls_context, warn_of_exposure
from speculant_graph.serving.process import in_uninterruptible_thread
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.app import API, MAX_BODY_BYTES, MAX_REQUESTS, create_app, refuse
from speculant_verifier.service.learning import Learning
from speculant_verifier.service.metrics import RequestKey, render_metrics
from speculant_verifier.service.requests import Load, shutting_down
from speculant_verifier.service.service import ADMIN_SERVICE_NAME, SERVICE_NAME, VerifierAdminService, VerifierService

GRACE_S = 60.0
"""Number of seconds in which running requests may finish at shutdown; a second stop signal ends them at once."""
_DRAIN_NOTICE_S = 2.0
_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class VerifierServer:
    """Runs a verifier in the current event loop, as an async context manager that serves within its block."""

    def __init__(
        self,
        config: ServiceConfig,
        defaults: GenerationConfig,
        make_decoder: Callable[[], SpeculativeDecoder],
        max_batch_size: int,
        make_learning: Callable[[SpeculativeDecoder], Learning] | None = None,
        access: AccessConfig = OPEN_ACCESS,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            config: addresses and limits.
            defaults: default settings of requests.
            make_decoder: loads the model; called in a thread.
            max_batch_size: maximum number of sequences that the decoder runs together.
            make_learning: starts training the draft model while the server runs; None for no training.
            access: settings that say which clients may call.

        Raises:
            ConfigError: a setting is wrong.
        """
        if not config.listen and not config.http:
            raise ConfigError("there is nothing to serve on; set service.listen or service.http")
        self._config, self._access = config, access
        self._defaults, self._make_decoder = defaults, make_decoder
        policy = AccessPolicy.load(access.file)
        self._interceptor = CallInterceptor(policy, MAX_REQUESTS)
        # Separate, so that operators can still reach a server at capacity.
        self._admin_interceptor = CallInterceptor(policy, MAX_REQUESTS)
        self._load = Load(config, max_batch_size)
        self._service = VerifierService(self._read_decoder, defaults, self._load)
        self._admin = VerifierAdminService(self._read_decoder)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined] # missing in the stubs
        self._http_requests: Counter[tuple[str, str]] = Counter()
        self._credentials = server_credentials(access)
        self._endpoints: list[GrpcEndpoint] = []
        self._decoder: SpeculativeDecoder | None = None
        self._make_learning = make_learning
        self._learning: Learning | None = None
        self._app: ASGIApp | None = None
        self._http = HttpServer(self._serve_http, config.http, tls=tls_context(access)) if config.http else None
        self._draining: asyncio.Task[bool] | None = None
        self._is_stop_forced = False
        self.addresses: list[str] = []
        """Addresses on which the gRPC service listens."""
        self.admin_addresses: list[str] = []
        """Addresses on which the gRPC admin service listens."""
        self.http_address = ""
        """Address on which the HTTP API listens."""

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
        """Listen, load the model, and serve.

        Raises:
            ConfigError: an address is malformed or taken, or the model can't be loaded.
        """
        await self._tell_health(_NOT_SERVING)
        if self._config.listen:
            self.addresses = await self._listen(
                self._config.listen, "service.listen", self._service.handler(self._interceptor), SERVICE_NAME
            )
        if self._config.admin_listen:
            self.admin_addresses = await self._listen(
                self._config.admin_listen,
                "service.admin_listen",
                self._admin.handler(self._admin_interceptor),
                ADMIN_SERVICE_NAME,
            )
        if self._http is not None:
            self.http_address = await self._http.start()
            warn_of_exposure(self._access, [self.http_address])
        self._decoder = await in_uninterruptible_thread(self._make_decoder)
        if self._make_learning is not None:
            self._learning = self._make_learning(self._decoder)
        if self._http is not None:
            self._app = create_app(
                self._decoder,
                self._config,
                lambda: self._interceptor.policy,
                self._defaults,
                load=self._load,
                read_problem=lambda: shutting_down() if self._load.is_draining else None,
                render_metrics=self._render_metrics,
                count_request=self._count_http,
            )
        threading.Thread(target=self._decoder.target.prepare_grammars, name="forms", daemon=True).start()
        await self._tell_health(_SERVING)
        scheme = "http" if self._access.tls_certificate is None else "https"
        urls = [f"{scheme}://{self.http_address}/v1"] if self.http_address else []
        more = f"; admin on {', '.join(self.admin_addresses)}" if self.admin_addresses else ""
        logger.info("verifier ready on {}{}", ", ".join([*self.addresses, *urls]), more)

    async def stop(self) -> None:
        """Report NOT_SERVING, let running requests finish, and release all resources."""
        self._load.is_draining = True
        if self._learning is not None:
            await asyncio.to_thread(self._learning.close)
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.gather(*(endpoint.stop(GRACE_S) for endpoint in self._endpoints))
        if self._http is not None and not self._is_stop_forced:
            self._draining = asyncio.create_task(self._http.drain(GRACE_S))
            await asyncio.wait([self._draining])
        await stopping
        if self._load.num_sequences:
            count = self._load.num_sequences
            logger.warning("{} {} cut off", count, "sequence is" if count == 1 else "sequences are")
        if self._decoder is not None:
            await asyncio.to_thread(self._decoder.close)
        if self._http is not None:
            await self._http.drain(_DRAIN_NOTICE_S)  # clients that are cut off get a notice
            await self._http.close()
        for endpoint in self._endpoints:
            endpoint.close()

    async def force_stop(self) -> None:
        """End running requests at once."""
        self._is_stop_forced = True
        if self._draining is not None:
            self._draining.cancel()
        await asyncio.gather(*(endpoint.force_stop() for endpoint in self._endpoints))

    async def reload(self) -> None:
        """Read the access file again; if it is invalid, log the error and keep the old policy."""
        try:
            self._interceptor.policy = self._admin_interceptor.policy = AccessPolicy.load(self._access.file)
        except ConfigError as error:
            logger.error("the access file is not reloaded: {}", error)

    async def _listen(self, addresses: str, option: str, handler: Any, name: str) -> list[str]:
        endpoint = GrpcEndpoint(
            self._access,
            self._credentials,
            self._health,
            [handler],
            name,
            max_calls=MAX_REQUESTS,
            max_message_bytes=MAX_BODY_BYTES,
        )
        self._endpoints.append(endpoint)
        return await endpoint.listen(addresses, option)

    def _count_http(self, endpoint: str, status: int) -> None:
        self._http_requests[endpoint, str(status)] += 1

    def _render_metrics(self) -> bytes:
        requests: dict[RequestKey, int] = {("http", *key): count for key, count in self._http_requests.items()}
        requests |= {
            ("grpc", *key): count for key, count in (self._interceptor.ended + self._admin_interceptor.ended).items()
        }
        return render_metrics(self._decoder, self._load, requests)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request; while the model is loading, refuse every path except ``/metrics``."""
        app = self._app
        if app is None and scope["path"] == "/metrics":
            app = PlainTextResponse(self._render_metrics(), media_type=METRICS_TYPE)
        elif app is None and scope["path"].startswith(API):
            app = refuse(_loading())
        await (app or PlainTextResponse(f"{_loading().message}\n", HTTPStatus.SERVICE_UNAVAILABLE))(
            scope, receive, send
        )

    def _read_decoder(self) -> SpeculativeDecoder:
        if self._decoder is None:
            raise _loading()
        return self._decoder

    async def _tell_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME, ADMIN_SERVICE_NAME):
            await self._health.set(name, status)


def _loading() -> UnavailableError:
    return UnavailableError("the model is being loaded", fix="try again in a while")
