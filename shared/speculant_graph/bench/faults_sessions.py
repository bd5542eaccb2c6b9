"""Many sessions that are opened and dropped without a word, in little memory, beside one that is in use."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from speculant_graph.bench.faults_clients import BUDGET, driven_client, run_in_loop, steps_of
from speculant_graph.bench.faults_server import FaultyServer, Stage, running_drafter
from speculant_graph.rpc.channel import connect_channel_async
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub

PROMPT_TOKENS = 200
"""Tokens of every session that is dropped."""
BUSY_S = 0.1
"""``server.busy_s``: sessions that had a step within so long are not dropped for others."""

_CALLERS = 4
_SAMPLE_S = 0.02
_LIVE_PAUSE_S = 0.01
_TIMEOUT_S = 30.0
_MOST_TRIES = 1_000
_STATUS_DETAILS = "grpc-status-details-bin"


@dataclass(slots=True)
class _Tally:
    """What was seen."""

    opened: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    samples: int = 0
    most_bytes: int = 0
    most_open: int = 0
    live_steps: int = 0
    live_late: int = 0
    live_lost: int = 0


def measure_sessions(stage: Stage, num_sessions: int, memory_mb: int) -> dict[str, Any]:
    """Open sessions and drop them; return the figures.

    Args:
        stage: graph and texts.
        num_sessions: how many.
        memory_mb: ``server.max_session_memory``, in millions of bytes.
    """
    arguments = ["--max-session-memory", f"{memory_mb}MB", "--max-sessions", str(num_sessions + 1)]
    with running_drafter(stage, [*arguments, "--busy-s", str(BUSY_S)]) as server:
        return run_in_loop(_measure(stage, server, num_sessions, memory_mb * 1_000_000))


async def _measure(stage: Stage, server: FaultyServer, num_sessions: int, most_bytes: int) -> dict[str, Any]:
    tally = _Tally()
    resident = server.resident_bytes
    numbers = iter(range(num_sessions))
    async with connect_channel_async(server.address) as channel:
        stub = DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        beside = [asyncio.create_task(_sample(server, tally)), asyncio.create_task(_live(stage, server, tally))]
        started_s = time.perf_counter()
        try:
            await asyncio.gather(*(_open_and_drop(stage, stub, numbers, num_sessions, tally) for _ in range(_CALLERS)))
            took_s = time.perf_counter() - started_s
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
    for task in beside:
        if not task.cancelled():
            task.result()  # raises what went wrong beside
    metrics = server.metrics()
    return {
        "sessions": tally.opened,
        "refused": tally.refused,
        "failures": len(tally.failures),
        "failure": tally.failures[0] if tally.failures else "",
        "opens_per_s": round(tally.opened / took_s, 1),
        "limit_bytes": most_bytes,
        "most_bytes": max(tally.most_bytes, int(metrics["session_bytes"])),
        "samples": tally.samples,
        "most_open": tally.most_open,
        "evicted": int(metrics['ended_sessions_total{reason="memory"}']),
        "resident_before": resident,
        "resident_after": server.resident_bytes,
        "live_steps": tally.live_steps,
        "live_late": tally.live_late,
        "live_lost": tally.live_lost,
    }


async def _open_and_drop(stage: Stage, stub: Any, numbers: Iterator[int], total: int, tally: _Tally) -> None:
    for number in numbers:
        stage.tell("sessions: opened and dropped", tally.opened, total)
        text = stage.texts[number % len(stage.texts)]
        start = number % max(len(text) - PROMPT_TOKENS, 1)
        prompt = text[start : start + PROMPT_TOKENS]
        session_id = secrets.randbits(63) + 1
        request = pb.DraftRequest(
            session_ids=[session_id], positions=[0], context_lengths=[len(prompt)], context_tokens=prompt,
            node_budgets=[BUDGET],
        )  # fmt: skip
        for attempt in itertools.count(1):
            try:
                await stub.OpenSession(pb.OpenSessionRequest(session_id=session_id), timeout=_TIMEOUT_S)
                answer = await stub.Draft(request, timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                delay_s = retry_delay_s(error)
                if delay_s is None or attempt == _MOST_TRIES:
                    tally.failures.append(f"{error.code().name}: {error.details()}")
                    break
                tally.refused += 1
                await asyncio.sleep(delay_s)
            else:
                if answer.sequence_statuses[0] == pb.SEQUENCE_STATUS_OK:
                    tally.opened += 1
                    break


def retry_delay_s(error: grpc.aio.AioRpcError) -> float | None:
    """Return how long a call that is over a limit shall wait; None if it failed of something else."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    retry = RetryInfo()
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == _STATUS_DETAILS and any(detail.Unpack(retry) for detail in Status.FromString(value).details):
            return max(float(retry.retry_delay.ToNanoseconds()) * 1e-9, 0.001)
    return None


async def _sample(server: FaultyServer, tally: _Tally) -> None:
    while True:
        metrics = await asyncio.to_thread(server.metrics)
        tally.samples += 1
        tally.most_bytes = max(tally.most_bytes, int(metrics["session_bytes"]))
        tally.most_open = max(tally.most_open, int(sum(v for k, v in metrics.items() if k.startswith("open_sessions"))))
        await asyncio.sleep(_SAMPLE_S)


async def _live(stage: Stage, server: FaultyServer, tally: _Tally) -> None:
    """Use a session all the time."""
    text = stage.texts[0]
    async with driven_client("asyncio", server.address) as client:
        for num_tokens in itertools.count(PROMPT_TOKENS):
            await client.draft(steps_of([text], min(num_tokens, len(text))))
            statistics = client.statistics
            tally.live_steps, tally.live_late = statistics.steps, statistics.failed_steps
            tally.live_lost = statistics.reopened_sessions
            await client.pause(_LIVE_PAUSE_S)
