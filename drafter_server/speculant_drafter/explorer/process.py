"""The sidecar's side of the explorer's process: started when somebody looks, ended when nobody does."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any

from loguru import logger

from speculant_drafter.explorer.frames import LENGTH, MAX_BYTES, pack, unpack
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError

_MODULE = "speculant_drafter.explorer.child"
_MAX_WAITING = 8
_FIRST_TIMEOUT_S, _TIMEOUT_S = 120.0, 15.0
"""Patience with the first answer, before which kernels and tokenizer are loaded, and with later ones."""
_IDLE_S = 300.0
_BUSY_S = 1.0


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
        self._process: Process | None = None
        self._known_graphs: set[int] = set()
        self._end: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its number, while it runs."""
        return None if self._process is None else self._process.pid

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
                process = await self._running()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(message)
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                if length > MAX_BYTES:
                    raise EOFError
                answer = unpack(await process.stdout.readexactly(length))
        except BaseException as error:  # also if whoever asked went away: what it says next is an answer to nobody
            await self._kill()
            if not isinstance(error, (TimeoutError, OSError, EOFError)):
                raise
            logger.error("the explorer's process {}", "was too slow" if isinstance(error, TimeoutError) else "ended")
            raise DrafterUnavailableError("the explorer gave no answer; try again, or ask for less") from error
        self._known_graphs.add(generation)
        self._end = asyncio.create_task(self._end_when_idle())
        return answer

    async def _running(self) -> Process:
        if self._process is None:
            # It must not look for tokenizers elsewhere, nor take more than one core.
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            # -P: nothing is imported from the working folder.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", _MODULE, *self._arguments, stdin=PIPE, stdout=PIPE, env=environment
            )
        return self._process

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(self._idle_s)
        await self._kill()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        self._known_graphs.clear()
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
