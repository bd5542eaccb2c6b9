"""A server's life cycle, and clients that disconnect, wait or do not read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2
import openai
import pytest

from speculant_graph.errors import ShutdownError
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http import app
from support.http_api import MODEL, PATIENCE_S, Api, serving, tiny_decoder, wait_until
from support.server import run_in_loop

LONG: dict[str, Any] = {"model": MODEL, "prompt": "Once", "max_tokens": 480, "ignore_eos": True}
SHORT: dict[str, Any] = {"model": MODEL, "prompt": "Once", "max_tokens": 2}


@pytest.fixture(scope="module")
def narrow() -> Iterator[SpeculativeDecoder]:
    """A decoder with two rows, so that a third request waits."""
    with tiny_decoder(max_batch_size=2) as decoder:
        yield decoder


@contextmanager
def sent(
    api: Api, body: dict[str, Any], path: str = "completions", *, receive_buffer: int = 0
) -> Iterator[socket.socket]:
    """Send a request and read nothing."""
    content = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    host, _, port = api.address.rpartition(":")
    with socket.socket() as connection:
        connection.settimeout(PATIENCE_S)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((host, int(port)))
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        yield connection


def read_all(connection: socket.socket, end: bytes) -> bytes:
    content = b""
    while end not in content:
        piece = connection.recv(1 << 16)
        assert piece
        content += piece
    return content


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_frees_its_place(narrow: SpeculativeDecoder, is_stream: bool) -> None:
    with serving(narrow) as api:
        passes = narrow.engine.totals.num_passes
        with sent(api, LONG | {"n": 2, "temperature": 1.0, "stream": is_stream}):
            wait_until(lambda: narrow.engine.num_running == 2)
        api.wait_until_idle()
        assert narrow.engine.totals.num_passes - passes < 400  # the whole request takes more than 480
        assert api.post("completions", SHORT).status_code == 200


def test_a_full_queue(narrow: SpeculativeDecoder) -> None:
    with serving(narrow, max_waiting=1) as api:
        with ThreadPoolExecutor(1) as pool, sent(api, LONG | {"n": 2}):
            wait_until(lambda: narrow.engine.num_running == 2)
            waiting = pool.submit(api.post, "completions", SHORT)
            wait_until(lambda: narrow.num_sequences == 3)
            for body in (SHORT, SHORT | {"stream": True}):
                refusal = api.post("completions", body)
                assert refusal.status_code == 429
                assert refusal.headers["retry-after"] == "1"
                assert refusal.json()["error"]["code"] == "queue_full"
        assert waiting.result().status_code == 200
        assert api.post("completions", SHORT | {"n": 3}).status_code == 200
        assert api.post("completions", SHORT | {"n": 4}).json()["error"]["param"] == "n"


def test_starting_and_draining(decoder: SpeculativeDecoder) -> None:
    with serving(decoder) as api:
        assert api.get("/healthz").text == "ok\n"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(api.post, "completions", LONG | {"max_tokens": 200})
            wait_until(lambda: decoder.num_sequences)
            api.problem = ShutdownError("the server is stopping", fix="try again later")
            refusal = api.post("completions", SHORT)
            assert refusal.status_code == 503
            assert refusal.headers["retry-after"]
            assert refusal.json()["error"]["message"] == "the server is stopping; try again later"
            health = api.get("/healthz")
            assert (health.status_code, health.text) == (503, "the server is stopping\n")
            assert not run_in_loop(api.server.drain(0.0))
            assert run_in_loop(api.server.drain(PATIENCE_S))
            assert running.result().json()["usage"]["completion_tokens"] == 200
        run_in_loop(api.server.close())
        with pytest.raises(httpx2.ConnectError):
            api.get("/healthz")


def test_what_breaks_within_a_stream_is_told_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny_decoder("llama") as decoder, serving(decoder, model_id=MODEL) as api:
        forward, steps = decoder.target.forward, []

        def fail(*given: Any, **more: Any) -> Any:
            steps.append(1)
            if len(steps) > 4:
                raise ZeroDivisionError("secret of /srv")
            return forward(*given, **more)

        monkeypatch.setattr(decoder.target, "forward", fail)
        with pytest.raises(openai.APIError) as caught:
            list(
                api.client().completions.create(
                    model=MODEL, prompt="x", max_tokens=99, stream=True, extra_body={"ignore_eos": True}
                )
            )
        assert "x-request-id" in str(caught.value)
        assert not isinstance(caught.value, openai.APIStatusError)
        refusal = api.post("completions", SHORT)
        assert refusal.status_code == 500
        assert refusal.json()["error"]["code"] == "internal_error"
        assert "secret" not in refusal.text
        assert refusal.headers["x-request-id"]
        api.wait_until_idle()


def test_a_body_that_never_comes(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "AccessRules", partial(app.AccessRules, body_timeout_s=0.1))
    with serving(decoder) as api:
        host, _, port = api.address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
            assert b" 408 " in read_all(connection, b"\r\n\r\n")
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        assert api.get("/healthz").status_code == 200


def test_slow_readers_hold_up_nobody(narrow: SpeculativeDecoder) -> None:
    """A decoded request frees its row, although its client has read almost nothing."""
    with serving(narrow, max_waiting=0) as api:
        listening = api.server._server.servers[0].sockets[0]
        with socket.fromfd(listening.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)  # so that sockets fill soon
        messages = [{"role": "user", "content": "Once"}]
        body = {"model": MODEL, "messages": messages, "n": 2, "temperature": 1.0, "stream": True, "logprobs": True}
        body |= {"top_logprobs": 20, "max_tokens": 300, "ignore_eos": True}
        with sent(api, body, "chat/completions", receive_buffer=4_096) as connection:
            read_all(connection, b"data: ")
            api.wait_until_idle()
            wait_until(lambda: api.post("completions", SHORT | {"n": 2, "temperature": 1.0}).status_code == 200)
            assert not run_in_loop(api.server.drain(0.1))  # the rest does not fit into the sockets' buffers
            read = read_all(connection, b"data: [DONE]\n\n")
            assert read.count(b'"finish_reason":"length"') == 2
        with sent(api, body, "chat/completions", receive_buffer=4_096) as connection:
            api.wait_until_idle()
            state = api.server._server.server_state
            run_in_loop(api.server.close())
            wait_until(lambda: not state.connections)  # although the client has not read
