"""The sidecar's side of the explorer's process: started when somebody looks, ended when nobody does."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loguru import logger

from speculant_drafter.explorer.frames import LENGTH, MAX_BYTES, pack, unpack
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError

_MODULE = "speculant_drafter.explorer.child"
_MAX_WAITING = 8
_FIRST_TIMEOUT_S, _TIMEOUT_S = 120.0, 15.0
"""Patience with the first answer, before which the tokenizer is loaded, and with later ones."""
_IDLE_S = 300.0
_BUSY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ExplorerProcess:
    """Answers one request at a time; others wait, but not many."""

    def __init__(self, arguments: Sequence[str], *, idle_s: float = _IDLE_S) -> None:
        """Make a process that does not run yet.

        Args:
            arguments: its command line, behind its name.
            idle_s: it ends after so long without a request.
        """
        self._arguments = arguments
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._running: _Running | None = None
        self._ending: set[asyncio.Task[Any]] = set()
        self._known_graphs: set[int] = set()
        self._end: asyncio.Task[None] | None = None

    async def ask(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a message; return the answer to it.

        Raises:
            DraftLimitError: too many wait already.
            DrafterUnavailableError: it ended, or took too long.
        """
        if self._num_waiting >= _MAX_WAITING:
            raise DraftLimitError("the explorer is busy; try again in a second", _BUSY_S)
        self._num_waiting += 1
        try:
            async with self._turn:
                return await self._exchange(pack(header, body), header["graph"]["generation"])
        finally:
            self._num_waiting -= 1

    async def close(self) -> None:
        """End it, whatever it does."""
        if self._end is not None:
            self._end.cancel()
        await self._kill()

    async def _exchange(self, message: bytes, generation: int) -> tuple[dict[str, Any], bytes]:
        if self._end is not None:
            self._end.cancel()
        try:
            async with asyncio.timeout(_TIMEOUT_S if generation in self._known_graphs else _FIRST_TIMEOUT_S):
                running = await self._start()
                running.writer.write(message)
                await running.writer.drain()
                (length,) = LENGTH.unpack(await running.reader.readexactly(LENGTH.size))
                if length > MAX_BYTES:
                    raise EOFError
                answer = unpack(await running.reader.readexactly(length))
        except BaseException as error:  # also if whoever asked went away: what it says next is an answer to nobody
            await self._kill()
            if not isinstance(error, (TimeoutError, OSError, EOFError)):
                raise
            logger.error("the explorer's process {}", "was too slow" if isinstance(error, TimeoutError) else "ended")
            raise DrafterUnavailableError("the explorer gave no answer; try again, or ask for less") from error
        self._known_graphs.add(generation)
        self._end = asyncio.create_task(self._end_when_idle())
        return answer

    async def _start(self) -> _Running:
        if self._running is None:
            here, there = socket.socketpair()
            spawning = asyncio.create_task(asyncio.to_thread(_spawn, self._arguments, there))
            try:
                process = await asyncio.shield(spawning)  # whoever asked may go away, the thread does not
                reader, writer = await asyncio.open_unix_connection(sock=here)
            except BaseException:
                here.close()
                self._await_end(_end(spawning))
                raise
            self._running = _Running(process, reader, writer)
        return self._running

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(self._idle_s)
        await self._kill()

    async def _kill(self) -> None:
        running, self._running = self._running, None
        self._known_graphs.clear()
        if running is not None:
            running.writer.transport.abort()
            running.process.kill()
            self._await_end(asyncio.to_thread(running.process.wait))
        if self._ending:
            await asyncio.wait(self._ending)

    def _await_end(self, end: Coroutine[Any, Any, Any]) -> None:
        """See a process to its end, also if whoever asks for that goes away."""
        ending = asyncio.create_task(end)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _end(spawning: asyncio.Task[subprocess.Popen[bytes]]) -> None:
    """End a process that nobody waits for any more."""
    with suppress(OSError):  # there is none
        process = await spawning
        process.kill()
        await asyncio.to_thread(process.wait)


def _spawn(arguments: Sequence[str], connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start the process, and close the connection's end that it has got."""
    # It must not look for tokenizers elsewhere, nor take more than one core.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # -P: nothing is imported from the working folder. Not by the event loop, whose fork() gRPC would notice.
    command = [sys.executable, "-P", "-m", _MODULE, *arguments]
    with connection:
        return subprocess.Popen(command, stdin=connection.fileno(), stdout=connection.fileno(), env=environment)
