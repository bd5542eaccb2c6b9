"""Pings of gRPC clients: usual ones keep an idle connection open, and a flood ends it."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from support.server import serving
from support.verifier_service import demo_target, play

_LEAST_S = 5.05
_PATIENCE_S = 60.0
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7
_ACK = 1


class Connection:
    """Hand-written HTTP/2, so that a test controls the time of each ping."""

    def __init__(self, address: str, *, with_call: bool) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.connect(address.removeprefix("unix://"))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(_SETTINGS)
        if with_call:
            fields = {
                ":method": "POST", ":scheme": "http", ":path": "/grpc.health.v1.Health/Watch", ":authority": "x",
                "content-type": "application/grpc", "te": "trailers",
            }  # fmt: skip
            block = b"".join(
                b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
                for name, value in fields.items()
            )
            self._send(_HEADERS, block, flags=4, stream=1)
            self._send(_DATA, b"\0" * 5, flags=1, stream=1)
            while self._read() != (_DATA, 0):  # the only response
                pass

    def ping(self) -> None:
        """Send a ping."""
        self._send(_PING, b"pingpong")

    def answer(self) -> int:
        """Return the type of the frame that answers a ping, or ends the connection."""
        while (frame := self._read()) != (_PING, _ACK) and frame[0] != _GOAWAY:
            pass
        return frame[0]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> None:
        self._socket.sendall(len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload)

    def _read(self) -> tuple[int, int]:
        head = self._exactly(9)
        self._exactly(int.from_bytes(head[:3]))
        return head[3], head[4] if head[3] == _PING else 0

    def _exactly(self, num_bytes: int) -> bytes:
        found = b""
        while len(found) < num_bytes:
            piece = self._socket.recv(num_bytes - len(found))
            assert piece, "the server hung up"
            found += piece
        return found


def _check(address: str) -> None:
    with (
        closing(Connection(address, with_call=False)) as quiet,
        closing(Connection(address, with_call=True)) as calling,
    ):
        for index in range(4):  # gRPC tolerates two early pings
            for connection in (quiet, calling):
                connection.ping()
                assert connection.answer() == _PING
            if index < 3:
                time.sleep(_LEAST_S)  # counted from the answer, so load can't shorten it
        for connection in (quiet, calling):
            with suppress(BrokenPipeError):  # the connection may end before the last ping
                for _ in range(10):
                    connection.ping()
            while connection.answer() != _GOAWAY:
                pass


@pytest.mark.slow
def test_a_drafter_takes_pings_every_ten_seconds(graph_path: Path, tmp_path: Path) -> None:
    with serving(graph_path, tmp_path) as live:
        _check(live.address)


@pytest.mark.slow
def test_a_verifier_takes_pings_every_ten_seconds(tmp_path: Path) -> None:
    async def scenario(_stub: object, server: object) -> None:
        await asyncio.to_thread(_check, server.addresses[0])

    play(demo_target(), tmp_path, scenario)
