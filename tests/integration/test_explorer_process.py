"""The process behind the explorer: started when asked, one question at a time, ended when idle or when it hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from speculant_drafter.explorer import process as module
from speculant_drafter.explorer.frames import identity_of
from speculant_drafter.explorer.process import ExplorerProcess
from speculant_graph.config import DraftConfig
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError
from speculant_graph.graph.ngrams import NgramGraph

PATIENCE_S = 60.0
QUESTION = b'{"token_ids": [1, 2]}'

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")]


def children() -> list[int]:
    """Return the explorers that this process has started and that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
            is_explorer = b"explorer.child" in (path.parent / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == os.getpid() and state != "Z" and is_explorer:
            found.append(int(path.parent.name))
    return found


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.02)


@pytest.fixture
def header(small_graph: NgramGraph, graph_path: Path) -> dict[str, Any]:
    facts = {"name": "small", "path": str(graph_path), "tokenizer": "tests/alphabet", "generation": 3}
    return {"graph": {**facts, "identity": identity_of(small_graph.metadata)}, "served": [3]}


def run(scenario: Callable[[ExplorerProcess], Awaitable[None]], **settings: float) -> None:
    async def live() -> None:
        explorer = ExplorerProcess([DraftConfig().model_dump_json(), ""], **settings)
        try:
            await scenario(explorer)
        finally:
            await explorer.close()
        assert not children()

    asyncio.run(live())


def test_it_waits_for_its_turn_and_ends_when_nobody_looks(header: dict[str, Any]) -> None:
    async def scenario(explorer: ExplorerProcess) -> None:
        assert not children(), "nobody has asked"
        asked = [asyncio.create_task(explorer.ask(header, QUESTION)) for _ in range(12)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, DraftLimitError)]
        told = [answer for answer in answers if isinstance(answer, tuple)]
        assert (len(refused), len(told)) == (4, 8)
        assert {header["status"] for header, _ in told} == {200}
        assert refused[0].retry_delay_s == 1.0
        assert len(children()) == 1
        await until(lambda: not children())
        assert (await explorer.ask(header, QUESTION))[0]["status"] == 200, "and starts again"

    run(scenario, idle_s=0.2)


def test_one_that_hangs_is_ended_and_replaced(header: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(explorer: ExplorerProcess) -> None:
        await explorer.ask(header, QUESTION)
        (child,) = children()
        monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
        os.kill(child, signal.SIGSTOP)
        with pytest.raises(DrafterUnavailableError, match="try again"):
            await explorer.ask(header, QUESTION)
        assert not children()
        assert (await explorer.ask(header, QUESTION))[0]["status"] == 200

    run(scenario)


def test_whoever_goes_away_leaves_no_answer_for_the_next(header: dict[str, Any]) -> None:
    async def scenario(explorer: ExplorerProcess) -> None:
        impatient = asyncio.create_task(explorer.ask(header, QUESTION))
        await until(lambda: bool(children()))
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        _, body = await explorer.ask(header, b'{"token_ids": [4]}')
        assert b'"token_ids": [4]' in body

    run(scenario)


def test_whoever_goes_away_while_it_starts_leaves_no_process(
    header: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, has_begun, may_go_on = subprocess.Popen, threading.Event(), threading.Event()
    connections: list[int] = []

    def slow(command: list[str], stdin: Any, **more: Any) -> Any:
        number = stdin if isinstance(stdin, int) else stdin.fileno()
        connections.append(os.fstat(number).st_ino)
        has_begun.set()
        may_go_on.wait(PATIENCE_S)
        connections.append(os.fstat(number).st_ino)
        return start(command, stdin=stdin, **more)

    async def scenario(explorer: ExplorerProcess) -> None:
        monkeypatch.setattr(subprocess, "Popen", slow)
        impatient = asyncio.create_task(explorer.ask(header, QUESTION))
        await asyncio.to_thread(has_begun.wait, PATIENCE_S)
        impatient.cancel()
        await asyncio.sleep(0.05)
        others = [each for _ in range(4) for each in socket.socketpair()]  # they take numbers that are free
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        await until(lambda: len(connections) == 2)
        assert connections[0] == connections[1], "it would get somebody else's connection"
        await until(lambda: not children())
        for each in others:
            each.close()
        assert (await explorer.ask(header, QUESTION))[0]["status"] == 200

    run(scenario)


def test_what_is_not_served_any_more_is_let_go(header: dict[str, Any]) -> None:
    async def scenario(explorer: ExplorerProcess) -> None:
        await explorer.ask(header, QUESTION)
        (child,) = children()
        maps = Path(f"/proc/{child}/maps")
        assert header["graph"]["path"] in maps.read_text(encoding="utf-8")
        gone = {**header, "served": [4], "graph": {**header["graph"], "generation": 4, "path": "/nowhere.pkl"}}
        told, body = await explorer.ask(gone, QUESTION)
        assert told["status"] == 503
        assert b"/nowhere" not in body
        assert header["graph"]["path"] not in maps.read_text(encoding="utf-8")

    run(scenario)
