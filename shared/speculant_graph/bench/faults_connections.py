"""Connections that speak no HTTP/2, half of it, or far too slowly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a connection of HTTP/2 begins with."""

_SETTINGS = bytes(3) + b"\x04\x00" + bytes(4)
_TLS_HELLO = (
    bytes.fromhex("16030100a5010000a10303") + bytes(range(32)) + b"\x20" + bytes(range(32)) + b"\x00\x02\x13\x01"
)
_CONNECT_TIMEOUT_S = 5.0
_SLOW_INTERVAL_S = 0.5


def _frame(length: int, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


MALFORMED: dict[str, Callable[[Random], bytes]] = {
    "nothing": lambda random: b"",
    "garbage": lambda random: random.randbytes(random.randrange(1, 2_000)),
    "half a preface": lambda random: PREFACE[: random.randrange(1, len(PREFACE))],
    "TLS hello": lambda random: _TLS_HELLO,
    "HTTP/1.1": lambda random: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "garbage after the preface": lambda random: PREFACE + _SETTINGS + random.randbytes(random.randrange(1, 500)),
    "truncated headers": lambda random: (
        PREFACE + _SETTINGS + _frame(400, 1, 4, 1, random.randbytes(random.randrange(90)))
    ),
    "broken headers": lambda random: PREFACE + _SETTINGS + _frame(60, 1, 4, 1, random.randbytes(60)),
    "truncated data": lambda random: PREFACE + _SETTINGS + _frame(1 << 14, 0, 0, 1, random.randbytes(30)),
    "a frame too large": lambda random: PREFACE + _SETTINGS + _frame((1 << 24) - 1, 0, 0, 1, random.randbytes(100)),
    "resets of no stream": lambda random: PREFACE + _SETTINGS + _frame(4, 3, 0, 7, bytes(4)) * 50,
}
"""What a malformed connection sends, by the kind of its fault."""


async def send_malformed(path: Path, tcp: tuple[str, int], random: Random, patience_s: float = 0.05) -> str:
    """Connect, send something malformed, and go; return its kind, or "refused" if it was not let in.

    Args:
        path: the server's Unix socket.
        tcp: its host and port.
        random: chooses among both, the kind, and the bytes.
        patience_s: how long to listen before going.
    """
    kind = random.choice(list(MALFORMED))
    payload = MALFORMED[kind](random)
    connecting = asyncio.open_unix_connection(path) if random.random() < 0.5 else asyncio.open_connection(*tcp)
    try:
        reader, writer = await asyncio.wait_for(connecting, _CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError):
        return "refused"
    try:
        writer.write(payload)
        await writer.drain()
        await asyncio.wait_for(reader.read(1 << 16), patience_s)
    except (OSError, TimeoutError):  # the server may hang up at any time, or wait for more
        pass
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return kind


@contextmanager
def slow_connections(number: int, path: Path, tcp: tuple[str, int]) -> Iterator[SlowConnections]:
    """Hold half-open connections inside of the block."""
    slow = SlowConnections()
    try:
        slow.open(number, path, tcp)
        yield slow
    finally:
        slow.close()


class SlowConnections:
    """Connections that send the preface byte by byte."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._num_sent = 0
        self.sent_away = 0
        """Those that the server has closed."""

    def open(self, number: int, path: Path, tcp: tuple[str, int]) -> None:
        """Connect, by turns over both."""
        for place in range(number):
            connection = socket.socket(socket.AF_INET if place % 2 else socket.AF_UNIX)
            connection.settimeout(_CONNECT_TIMEOUT_S)
            try:
                connection.connect(tcp if place % 2 else str(path))
            except OSError:
                connection.close()
                self.sent_away += 1
                continue
            connection.setblocking(False)
            self._sockets.append(connection)

    async def hold(self, seconds: float, told: Callable[[float], None]) -> None:
        """Send a byte on each now and then, for so long; ``told`` of the share of it that is over."""
        started_s = time.monotonic()
        while (passed_s := time.monotonic() - started_s) < seconds:
            told(passed_s / seconds)
            for connection in list(self._sockets):
                if not self._is_held(connection):
                    self._sockets.remove(connection)
                    connection.close()
                    self.sent_away += 1
            self._num_sent += 1
            await asyncio.sleep(_SLOW_INTERVAL_S)

    def close(self) -> None:
        """Close them all."""
        for connection in self._sockets:
            connection.close()
        self._sockets = []

    def _is_held(self, connection: socket.socket) -> bool:
        try:
            connection.send(PREFACE[self._num_sent : self._num_sent + 1])
            while connection.recv(1 << 12):  # what a server says first
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False
