"""The HTTP server of sidecar and verifier on real sockets, in its own thread: invalid, slow and oversized requests."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
from collections.abc import Callable

import pytest
from starlette.responses import PlainTextResponse

from speculant_graph.serving import http as serving
from speculant_graph.serving.http import HttpServer, HttpThread

PATIENCE_S = 20.0


def serve(talk: Callable[[int], None]) -> None:
    """Run a server, and call ``talk`` with its port in a thread."""

    async def run() -> None:
        app = PlainTextResponse("ok\n")
        server = HttpThread(HttpServer(app, "127.0.0.1:0"))
        try:
            bound = await server.start()
            host, _, port = bound.rpartition(":")
            assert host == "127.0.0.1"
            await asyncio.to_thread(talk, int(port))
        finally:
            await asyncio.wait_for(server.close(), PATIENCE_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), PATIENCE_S)

    asyncio.run(run())


def status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "request_bytes", [b"hello\r\n\r\n", b"\xff\x00 / x\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1\r\nX-Long: "]
)
def test_what_is_no_request_is_refused(request_bytes: bytes) -> None:
    def talk(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            connection.sendall(request_bytes + (b"x" * 70_000 if request_bytes.endswith(b" ") else b""))
            assert connection.recv(65_536).startswith(b"HTTP/1.1 400 ")
        assert status(port) == 200

    serve(talk)


@pytest.mark.parametrize("drips", [True, False])
def test_a_request_that_does_not_begin_in_time_is_dropped(monkeypatch: pytest.MonkeyPatch, drips: bool) -> None:
    monkeypatch.setattr(serving, "_HEAD_TIMEOUT_S", 0.2)

    def talk(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            give_up_s = time.monotonic() + PATIENCE_S
            is_connected = drips
            while is_connected and time.monotonic() < give_up_s:
                try:
                    connection.sendall(b"G")
                    time.sleep(0.02)
                except OSError:
                    is_connected = False
            assert not is_connected
            assert drips or is_closed(connection)
        assert status(port) == 200

    serve(talk)


def test_a_server_that_never_started_closes() -> None:
    asyncio.run(HttpThread(HttpServer(PlainTextResponse(""), "127.0.0.1:0", tls=ssl.create_default_context())).close())
