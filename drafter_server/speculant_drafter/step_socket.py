"""Serves drafting steps over a Unix socket without gRPC, for clients on the same machine.

For an address ``unix:///path``, the sidecar also serves ``path.steps``: a stream of ``StreamDraft`` messages, each with
a 4-byte little-endian length prefix. Calls other than drafting steps use gRPC. The permissions of the socket file
control access, as they do for gRPC's Unix sockets. If the access file requires keys, the step socket is closed, and
clients send their steps over gRPC instead.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path
from typing import cast

from loguru import logger

from speculant_drafter.service import DrafterService
from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.addresses import socket_path, step_socket_path
from speculant_graph.rpc.step_frames import FrameReader, framed
from speculant_graph.serving.access import ANONYMOUS
from speculant_graph.serving.grpc_endpoint import CallInterceptor


class StepSockets:
    """Serves a step socket for each Unix socket of a sidecar."""

    def __init__(self, service: DrafterService, calls: CallInterceptor, most_connections: int, most_bytes: int) -> None:
        """Make the step sockets of a sidecar; they do not listen yet.

        Args:
            service: handles steps.
            calls: interceptor with the access policy, which decides whether keys are required.
            most_connections: maximum number of connections; further ones are closed at once.
            most_bytes: maximum size of a message; a client that sends a longer one is disconnected.
        """
        self.service, self._calls = service, calls
        self._most_connections, self.most_bytes = most_connections, most_bytes
        self.connections: set[StepConnection] = set()
        """Open connections."""
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []

    async def listen(self, addresses: list[str]) -> None:
        """Make a step socket for each Unix socket among the addresses; this process already holds their locks."""
        for path in filter(None, map(socket_path, addresses)):
            beside = step_socket_path(path)
            previous_mask = os.umask(0o077)  # only this user's clients may connect
            try:
                if beside.is_socket():
                    beside.unlink()  # left by a killed server
                if not self._calls.policy.is_open:
                    continue
                loop = asyncio.get_running_loop()
                self._servers.append(await loop.create_unix_server(lambda: StepConnection(self), str(beside)))
            except OSError as error:
                logger.warning(
                    "no step socket at {} ({}): steps go over gRPC, which is slower; remove the file, or choose a "
                    "shorter path with server.listen",
                    beside,
                    error.strerror or error,
                )
                continue
            finally:
                os.umask(previous_mask)
            self._paths.append(beside)

    def is_open(self) -> bool:
        """Return whether clients are served without keys; if keys are required, stop listening."""
        if not self._calls.policy.is_open:
            self._stop_listening()
        return self._calls.policy.is_open

    def take(self, connection: StepConnection) -> bool:
        """Accept a connection; return False to refuse it."""
        if not self.is_open() or len(self.connections) >= self._most_connections:
            return False
        self.connections.add(connection)
        return True

    async def close(self) -> None:
        """Stop listening, answer running steps, and close all connections."""
        self._stop_listening()
        await asyncio.gather(*(each.work for each in self.connections if each.work), return_exceptions=True)
        for connection in list(self.connections):
            connection.close()

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._servers, self._paths = [], []


class StepConnection(asyncio.Protocol):
    """One client's connection.

    Steps are answered in order; a short step is answered at once if no earlier step is pending.
    """

    def __init__(self, sockets: StepSockets) -> None:
        """Make a connection whose client is not accepted yet."""
        self._sockets = sockets
        self._frames = FrameReader(sockets.most_bytes)
        self._waiting: deque[bytes] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_full = False
        self.work: asyncio.Task[None] | None = None
        """Task that answers a long step and the steps after it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the client, or close its connection."""
        self._transport = cast(asyncio.Transport, transport)
        if not self._sockets.take(self):
            transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """Remove the connection."""
        self._sockets.connections.discard(self)
        self._transport = None
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Answer all steps that have arrived completely."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._sockets.is_open():  # a new access file requires keys
            return self._transport.close()
        try:
            self._waiting += self._frames.feed(data)
            if self._waiting and self.work is None:
                answer = self._sockets.service.answer_at_once(self._waiting[0], ANONYMOUS)
                if answer is not None:
                    self._waiting.popleft()
                    self._transport.write(framed(answer))
        except (ValueError, DraftRequestError) as error:
            return self._disconnect(error)
        if self.work is None and self._waiting:
            self.work = asyncio.ensure_future(self._answer_rest())
            self.work.add_done_callback(self._end_work)
        self._read_or_wait()

    def pause_writing(self) -> None:
        """Stop reading steps, because the client does not read its answers."""
        self._is_full = True
        self._read_or_wait()

    def resume_writing(self) -> None:
        """Resume reading, because the client reads its answers again."""
        self._is_full = False
        self._read_or_wait()

    def close(self) -> None:
        """Close the connection after the pending answers are sent."""
        if self._transport is not None:
            self._transport.close()

    def _disconnect(self, error: Exception) -> None:
        logger.debug("a step client was disconnected: {}", error)
        self._waiting.clear()
        self.close()

    async def _answer_rest(self) -> None:
        try:
            while self._waiting:
                answer = await self._sockets.service.answer_enveloped(self._waiting.popleft(), ANONYMOUS)
                if self._transport is not None:
                    self._transport.write(framed(answer))
                await asyncio.sleep(0)  # lets other tasks run
        except DraftRequestError as error:
            self._disconnect(error)

    def _end_work(self, _: object) -> None:
        self.work = None
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Pause reading while steps or answers are pending, so that a client can't exhaust memory; else resume."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_full or self.work is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
