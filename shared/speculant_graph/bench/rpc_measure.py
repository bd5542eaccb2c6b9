"""Steps of one batch size over a drafter, a bare gRPC echo and a raw socket, a few of each in turns."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import psutil

from speculant_graph.bench import rpc_echo
from speculant_graph.bench.rpc_processes import Certificate, Servers
from speculant_graph.client import AsyncDrafterClient, DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel, connect_channel_async
from speculant_graph.rpc.messages import SequenceRequest, StepOptions, StepRequest
from speculant_graph.types import SequenceStep

ClientName = Literal["asyncio", "blocking"]
"""Which of the two clients steps go through; the echo is called in the same manner."""

TOKENS_PER_STEP = 4
"""Accepted tokens that a step brings."""
PROMPT_TOKENS = 200
"""Tokens of a sequence before its first step."""

_TURN = 10
"""Steps of one contender before it is the next one's turn."""
_SAMPLES = 40
_PATIENT = {"deadline_ms": 30_000.0, "open_deadline_ms": 30_000.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    batch: int
    """Sequences of a step."""
    client: ClientName
    """How it is called."""
    steps: int
    """Steps of each contender."""
    draft: DraftConfig
    """How is drafted; ``k`` tokens for every sequence."""
    texts: list[list[int]]
    """One text for every sequence, long enough for all steps."""


class _Batch:
    """Sequences that grow from step to step."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self._ids = [seed * plan.batch + number + 1 for number in range(plan.batch)]
        self._end = PROMPT_TOKENS

    @property
    def session_ids(self) -> list[int]:
        return self._ids

    def next_steps(self) -> list[SequenceStep]:
        self._end += TOKENS_PER_STEP
        return [
            SequenceStep(session_id, text[: self._end], self._plan.draft.k, session_id)
            for session_id, text in zip(self._ids, self._plan.texts, strict=True)
        ]


async def measure(plan: Plan, servers: Servers, certificate: Certificate | None) -> dict[str, Any]:
    """Run all steps; return the figures of one result, times in microseconds.

    Raises:
        SpeculantError: a step failed.
    """
    config = ClientConfig.model_validate({
        "address": servers.drafter, "tls_ca": certificate and certificate.authority, **_PATIENT
    })  # fmt: skip
    request, reply = await _typical_bytes(plan, config)
    runs: dict[str, Callable[[int], Awaitable[list[int]]]] = {}
    async with contextlib.AsyncExitStack() as stack:
        drafting = await stack.enter_async_context(_drafting(plan, config))
        echo = await stack.enter_async_context(_echoing(plan, servers.echo, config, request, reply))
        raw = stack.enter_context(_raw_socket(servers.socket, request, reply))
        runs = {servers.drafter: drafting, servers.echo: echo, servers.socket: raw}
        times: dict[str, list[int]] = {address: [] for address in runs}
        busy_s, wall_s = dict.fromkeys(runs, 0.0), dict.fromkeys(runs, 0.0)
        own = psutil.Process()
        for run in runs.values():
            await run(_TURN)
        for turn in range(max(1, plan.steps // _TURN)):
            addresses = list(runs)[turn % len(runs) :] + list(runs)[: turn % len(runs)]
            for address in addresses:
                processes = (own, servers.processes[address])
                cpu_s, started_s = sum(map(_cpu_s, processes)), time.perf_counter()
                times[address] += await runs[address](_TURN)
                wall_s[address] += time.perf_counter() - started_s
                busy_s[address] += sum(map(_cpu_s, processes)) - cpu_s
    ours = np.array(times[servers.drafter]) / 1e3
    bare = np.array(times[servers.echo]) / 1e3
    return {
        "batch": plan.batch,
        "client": plan.client,
        "steps": len(ours),
        "request_bytes": len(request),
        "reply_bytes": len(reply),
        "p50_us": _percentile(ours, 50),
        "p99_us": _percentile(ours, 99),
        "echo_p50_us": _percentile(bare, 50),
        "echo_p99_us": _percentile(bare, 99),
        "socket_p50_us": _percentile(np.array(times[servers.socket]) / 1e3, 50),
        "echo_ratio": round(float(np.median(ours) / np.median(bare)), 3),
        "rpc_per_s": round(len(ours) / wall_s[servers.drafter], 1),
        "cpu_us_per_rpc": round(busy_s[servers.drafter] / len(ours) * 1e6, 1),
        "echo_cpu_us_per_rpc": round(busy_s[servers.echo] / len(bare) * 1e6, 1),
    }


def _percentile(times_us: Any, percent: float) -> float:
    return round(float(np.percentile(times_us, percent)), 1)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _typical_bytes(plan: Plan, config: ClientConfig) -> tuple[bytes, bytes]:
    """Return a request and its answer, of the median size among some steps."""
    options = StepOptions(plan.draft.strategy, plan.draft.max_candidates)
    batch = _Batch(plan, seed=10**9)
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    pairs: list[tuple[bytes, bytes]] = []
    with connect_channel(config.address, config) as channel:
        from speculant_graph.rpc.v1 import drafter_pb2 as pb
        from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub

        stub: Any = DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        for session_id in batch.session_ids:
            stub.OpenSession(pb.OpenSessionRequest(session_id=session_id))
        stream = channel.stream_stream("/speculant_graph.rpc.v1.DrafterService/StreamDraft", None, None)
        answers: Any = stream(iter(requests.get, None))
        position = 0
        for step_id in range(1, _SAMPLES + 2):
            sequences = tuple(
                SequenceRequest(
                    tuple(step.token_ids[position:]), step.session_id, position, step.node_budget, step.seed
                )
                for step in batch.next_steps()
            )
            position = sequences[0].position + len(sequences[0].token_ids)
            request = convert.encode_stream_step(step_id, StepRequest(sequences, options))
            requests.put(request)
            pairs.append((request, next(answers)))
        requests.put(None)
        for session_id in batch.session_ids:
            stub.CloseSession(pb.CloseSessionRequest(session_id=session_id))
    return sorted(pairs[1:], key=lambda pair: len(pair[1]))[len(pairs) // 2]  # the first brings the prompt


@contextlib.asynccontextmanager
async def _drafting(plan: Plan, config: ClientConfig) -> Any:
    """Yield what makes a number of steps through a client and returns their nanoseconds."""
    batch = _Batch(plan, seed=0)
    settings: dict[str, Any] = {"tokenizer": None, "draft": plan.draft, "strict": True}
    if plan.client == "asyncio":
        async with AsyncDrafterClient(config, **settings) as client:
            for session_id in batch.session_ids:
                await client.open(session_id)

            async def run(number: int) -> list[int]:
                times = []
                for _ in range(number):
                    steps = batch.next_steps()
                    started_ns = time.perf_counter_ns()
                    await client.draft(steps)
                    times.append(time.perf_counter_ns() - started_ns)
                _require_all(client.statistics.failed_steps, client.statistics.last_failure)
                return times

            yield run
        return
    with DrafterClient(config, **settings) as blocking:
        for session_id in batch.session_ids:
            blocking.open(session_id)

        async def run_blocking(number: int) -> list[int]:
            times = []
            for _ in range(number):
                steps = batch.next_steps()
                started_ns = time.perf_counter_ns()
                blocking.draft(steps)
                times.append(time.perf_counter_ns() - started_ns)
            _require_all(blocking.statistics.failed_steps, blocking.statistics.last_failure)
            return times

        yield run_blocking


def _require_all(num_failed: int, reason: str) -> None:
    if num_failed:
        raise SpeculantError(f"{num_failed} steps failed: {reason}; run it again")


@contextlib.asynccontextmanager
async def _echoing(plan: Plan, address: str, config: ClientConfig, request: bytes, reply: bytes) -> Any:
    """Yield what sends a number of messages over a bare stream and returns their nanoseconds."""
    if plan.client == "asyncio":
        async with connect_channel_async(address, config) as channel:
            method: Any = channel.stream_stream(rpc_echo.METHOD, None, None)
            call = method()

            async def exchange(payload: bytes) -> None:
                await call.write(payload)
                await call.read()

            await exchange(rpc_echo.SET + reply)

            async def run(number: int) -> list[int]:
                times = []
                for _ in range(number):
                    started_ns = time.perf_counter_ns()
                    await exchange(request)
                    times.append(time.perf_counter_ns() - started_ns)
                return times

            yield run
            call.cancel()
        return
    with connect_channel(address, config) as blocking:
        requests: SimpleQueue[bytes | None] = SimpleQueue()
        answers: Any = blocking.stream_stream(rpc_echo.METHOD, None, None)(iter(requests.get, None))
        requests.put(rpc_echo.SET + reply)
        next(answers)

        async def run_blocking(number: int) -> list[int]:
            times = []
            for _ in range(number):
                started_ns = time.perf_counter_ns()
                requests.put(request)
                next(answers)
                times.append(time.perf_counter_ns() - started_ns)
            return times

        yield run_blocking
        requests.put(None)


@contextlib.contextmanager
def _raw_socket(address: str, request: bytes, reply: bytes) -> Iterator[Any]:
    with rpc_echo.connect(address) as connection:
        rpc_echo.write_message(connection, rpc_echo.SET + reply)
        rpc_echo.read_message(connection)

        async def run(number: int) -> list[int]:
            times = []
            for _ in range(number):
                started_ns = time.perf_counter_ns()
                rpc_echo.write_message(connection, request)
                rpc_echo.read_message(connection)
                times.append(time.perf_counter_ns() - started_ns)
            return times

        yield run


def run_plans(plans: list[Plan], servers: Servers, certificate: Certificate | None, told: Any) -> list[dict[str, Any]]:
    """Measure plan after plan in an event loop of the kind that a service would use."""

    async def run() -> list[dict[str, Any]]:
        results = []
        for plan in plans:
            told(plan)
            results.append(await measure(plan, servers, certificate))
        return results

    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(run())
    return uvloop.run(run())
