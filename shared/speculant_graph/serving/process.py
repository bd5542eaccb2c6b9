"""Runs a server in its own process, with an event loop and signal handlers that stop it or reload its files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

import uvloop
from loguru import logger

from speculant_graph.errors import SpeculantError

_T = TypeVar("_T")
_UNINTERRUPTIBLE = "speculant-uninterruptible"


class Server(Protocol):
    """Interface of a server that :func:`serve_until_stopped` runs."""

    async def start(self) -> None:
        """Start serving; return when the server is ready."""

    async def stop(self) -> None:
        """Let running calls finish, and release resources; called once, even after a failed or cancelled start."""

    async def force_stop(self) -> None:
        """Cancel running calls. Called while :meth:`stop` waits for these calls, so that :meth:`stop` returns soon."""

    async def reload(self) -> None:
        """Read the server's files again."""


def serve_until_stopped(make_server: Callable[[], Server], name: str) -> None:
    """Serve until SIGTERM or SIGINT, and reload files on SIGHUP. A second SIGTERM or SIGINT cancels running calls.

    Functions that :func:`in_uninterruptible_thread` still runs end with the process. The exit status of the process
    is 0.

    Args:
        make_server: creates the server; called in the event loop.
        name: the server's name, for messages.

    Raises:
        SpeculantError: the server can't be made or started.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(make_server, name))
    if any(thread.name == _UNINTERRUPTIBLE for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # native code in a thread would crash while the interpreter is finalised


async def in_uninterruptible_thread(function: Callable[[], _T]) -> _T:
    """Call a long, uninterruptible function in a thread that does not delay the end of the process.

    Args:
        function: the function to call; its result or error is dropped if the caller stops waiting.
    """
    outcome: Future[_T] = Future()
    outcome.set_running_or_notify_cancel()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, name=_UNINTERRUPTIBLE, daemon=True).start()
    return await asyncio.wrap_future(outcome)


async def _serve(make_server: Callable[[], Server], name: str) -> None:
    loop = asyncio.get_running_loop()
    stopping, forcing, reloading = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def end() -> None:
        (forcing if stopping.is_set() else stopping).set()

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, end)
    loop.add_signal_handler(signal.SIGHUP, reloading.set)
    server = make_server()
    starting = asyncio.create_task(server.start())
    waiting = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        reloader = asyncio.create_task(_reload_when_asked(server, reloading))
        await waiting
        reloader.cancel()
        logger.info("{} stops when running calls have ended; a second signal stops it at once", name)
    finally:
        starting.cancel()
        waiting.cancel()
        with suppress(asyncio.CancelledError, SpeculantError):
            await starting
        force_stop = asyncio.create_task(_force_stop_when_asked(server, forcing))
        await server.stop()
        force_stop.cancel()


async def _force_stop_when_asked(server: Server, asked: asyncio.Event) -> None:
    await asked.wait()
    await server.force_stop()


async def _reload_when_asked(server: Server, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        try:
            await server.reload()
        except Exception:  # the next signal must still be handled
            logger.exception("reloading failed")
