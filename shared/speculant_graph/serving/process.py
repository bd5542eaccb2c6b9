"""A server in a process of its own: an event loop, and the signals that end it or have it read its files again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from loguru import logger

from speculant_graph.errors import SpeculantError


class Server(Protocol):
    """What can be served."""

    async def start(self) -> None:
        """Serve; returns when all is ready."""

    async def stop(self) -> None:
        """Let running calls finish, and let go. Called once, also if the start failed or was cancelled."""

    async def reload(self) -> None:
        """Read files again."""


def serve_until_stopped(make_server: Callable[[], Server], name: str) -> None:
    """Serve until SIGTERM or SIGINT, and read files again on SIGHUP.

    Args:
        make_server: makes the server, in the event loop.
        name: for messages.

    Raises:
        SpeculantError: it can't be made or started.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(make_server, name))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


async def _serve(make_server: Callable[[], Server], name: str) -> None:
    loop = asyncio.get_running_loop()
    stopping, reloading = asyncio.Event(), asyncio.Event()
    for number, event in ((signal.SIGTERM, stopping), (signal.SIGINT, stopping), (signal.SIGHUP, reloading)):
        loop.add_signal_handler(number, event.set)
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
        logger.info("{} stopping", name)
    finally:
        starting.cancel()
        waiting.cancel()
        with suppress(asyncio.CancelledError, SpeculantError):
            await starting
        await server.stop()


async def _reload_when_asked(server: Server, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        try:
            await server.reload()
        except Exception:  # the next signal must still be heard
            logger.exception("reading again failed")
