"""The HTTP API in this process, on a real socket; all test servers share one event loop."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from openai import OpenAI

from speculant_graph.config import AccessConfig, DraftConfig, GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.errors import UnavailableError
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.http import HttpServer
from speculant_graph.serving.listening import tls_context
from speculant_graph.strategies import StrategyName
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.app import create_app
from speculant_verifier.service.requests import Load
from support.server import run_in_loop
from support.tiny_models import tiny_gpt_oss, tiny_model

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if reasoning_effort is defined %}effort {{ reasoning_effort }}\n{% endif %}assistant:"
)
MODEL = "tiny-gpt-oss"
PATIENCE_S = 240.0
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A TLS context without the machine's certificates: reading them for every client takes longer than most tests."""


def tiny_decoder(
    family: str = "gpt_oss", *, template: str = TEMPLATE, strategy: StrategyName = "adaptive", **settings: Any
) -> SpeculativeDecoder:
    """Return a decoder with a random model and a chat template; it drafts from the sequence itself."""
    target = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    target.tokenizer.chat_template = template
    config = VerifierConfig.model_validate({"measure_costs": False, "num_threads": 1, **settings})
    return SpeculativeDecoder(target=target, verifier_config=config, draft_config=DraftConfig(strategy=strategy, k=4))


class Api:
    """A running server."""

    def __init__(self, server: HttpServer, address: str, decoder: SpeculativeDecoder) -> None:
        self.server, self.address, self.decoder = server, address, decoder
        self.url = f"http://{address}"
        self.problem: UnavailableError | None = None
        self.http = httpx2.Client(base_url=self.url, verify=NO_AUTHORITIES, timeout=PATIENCE_S)
        self.clients: list[OpenAI] = []

    def client(self, key: str = "none", **options: Any) -> OpenAI:
        """Return an official client without retries; it is closed with the server."""
        http = httpx2.Client(verify=NO_AUTHORITIES)
        defaults = {"base_url": f"{self.url}/v1", "max_retries": 0, "timeout": PATIENCE_S, "http_client": http}
        client = OpenAI(api_key=key, **{**defaults, **options})
        self.clients.append(client)
        return client

    def post(self, path: str, body: object = None, **options: Any) -> httpx2.Response:
        """Send a JSON body to an endpoint."""
        return self.http.post(f"/v1/{path}", json=body, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        """Get a path."""
        return self.http.get(path, **options)

    def wait_until_idle(self) -> None:
        """Wait until no request is being decoded."""
        wait_until(lambda: self.decoder.num_sequences == 0)


def wait_until(holds: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


@contextmanager
def serving(
    decoder: SpeculativeDecoder,
    policy: AccessPolicy | Callable[[], AccessPolicy] | None = None,
    defaults: GenerationConfig | None = None,
    address: str = "127.0.0.1:0",
    tls: dict[str, Any] | None = None,
    render_metrics: Callable[[], bytes] = lambda: b"things_total 1.0\n",
    **settings: Any,
) -> Iterator[Api]:
    """Serve a decoder; ``settings`` are fields of ServiceConfig."""
    holder: list[Api] = []
    config = ServiceConfig.model_validate(settings)
    app = create_app(
        decoder,
        config,
        policy if callable(policy) else lambda: policy or AccessPolicy(),
        defaults or GenerationConfig(max_tokens=16),
        load=Load(config, decoder.verifier_config.max_batch_size),
        read_problem=lambda: holder[0].problem,
        render_metrics=render_metrics,
    )
    server = HttpServer(app, address, tls=tls_context(AccessConfig.model_validate(tls or {})))
    holder.append(Api(server, run_in_loop(server.start()), decoder))
    try:
        yield holder[0]
    finally:
        for client in (holder[0].http, *holder[0].clients):
            client.close()
        run_in_loop(server.close())
