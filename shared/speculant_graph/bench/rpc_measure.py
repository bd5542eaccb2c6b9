"""Steps of one batch size over a drafter, a bare gRPC echo and a raw socket, in turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import psutil

from speculant_graph.bench import rpc_echo
from speculant_graph.bench.rpc_engine import engine_steps
from speculant_graph.bench.rpc_processes import Certificate, Servers
from speculant_graph.client import AsyncDrafterClient, DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.draft.cost import CostCurve
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel, connect_channel_async
from speculant_graph.rpc.messages import OpenRequest, SequenceRequest, StepRequest
from speculant_graph.types import DrafterStatistics, DraftOptions, SequenceStep

ClientName = Literal["asyncio", "blocking"]
"""Which of the two clients steps go through; the echo is called in the same manner."""

TOKENS_PER_STEP = 4
"""Accepted tokens that a step brings."""
PROMPT_TOKENS = 200
"""Tokens of a sequence before its first step."""

_WARM_UP = 50
_SERVICE = "/speculant_graph.rpc.v1.DrafterService/"
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
    graph: NgramGraph
    """What the drafter drafts from."""
    cost: CostCurve | None = None
    """What sessions say that verifying costs."""

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below it."""
        return self.graph.vocabulary_size


class _Batch:
    """Sequences that grow from step to step."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ids = [secrets.randbits(62) + 1 for _ in range(plan.batch)]
        self._start = self._sent = 0
        self._end = PROMPT_TOKENS
        self._grown = [text[:PROMPT_TOKENS] for text in plan.texts]
        self._options = DraftOptions(plan.draft.strategy, plan.draft.max_candidates)

    @property
    def session_ids(self) -> list[int]:
        return self._ids

    @property
    def cost(self) -> CostCurve | None:
        return self._plan.cost

    def next_request(self) -> StepRequest:
        self._start, self._end = self._sent, self._end + TOKENS_PER_STEP
        self._sent = self._end
        return StepRequest(
            tuple(
                SequenceRequest(
                    tuple(text[self._start : self._end]), session_id, self._start, self._plan.draft.k, session_id
                )
                for session_id, text in zip(self._ids, self._plan.texts, strict=True)
            ),
            self._options,
        )

    def next_steps(self) -> list[SequenceStep]:
        start, self._end = self._end, self._end + TOKENS_PER_STEP
        for grown, text in zip(self._grown, self._plan.texts, strict=True):
            grown.extend(text[start : self._end])
        return [
            SequenceStep(session_id, grown, self._plan.draft.k, session_id)
            for session_id, grown in zip(self._ids, self._grown, strict=True)
        ]


Contender = Callable[[], Awaitable[int]]
"""Makes one step and returns its nanoseconds."""


async def measure(plan: Plan, servers: Servers, certificate: Certificate | None) -> dict[str, Any]:
    """Run all steps; return the figures of one result, times in microseconds.

    Contenders take turns step by step, so that none finds the processor's caches as it left them: between two drafts of
    a server lies a pass of its model.

    Raises:
        SpeculantError: a step failed.
    """
    config = ClientConfig.model_validate({
        "address": servers.drafter, "tls_ca": certificate and certificate.authority, **_PATIENT
    })  # fmt: skip
    request, reply = await _typical_bytes(plan, config)
    async with contextlib.AsyncExitStack() as stack:
        contenders: dict[str, Contender] = {
            "stream": await stack.enter_async_context(_streaming(plan, config)),
            "client": await stack.enter_async_context(_drafting(plan, config)),
            "echo": await stack.enter_async_context(_echoing(plan, servers.echo, config, request, reply)),
            "socket": stack.enter_context(_raw_socket(servers.socket, request, reply)),
        }
        if plan.client == "blocking":  # as engines call it
            for name, of in (("engine", config), ("engine_in_process", None)):
                contenders[name] = stack.enter_context(engine_steps(plan, of, PROMPT_TOKENS, TOKENS_PER_STEP))
        times: dict[str, list[int]] = {name: [] for name in contenders}
        names = list(contenders)
        for turn in range(_WARM_UP + plan.steps):
            for place in range(len(names)):  # everyone comes first, second, ... equally often
                name = names[(turn + place) % len(names)]
                times[name].append(await contenders[name]())
        usage = {
            name: await _usage(contenders[name], servers.processes[address].pid, plan.steps // 2)
            for name, address in (("stream", servers.drafter), ("client", servers.drafter), ("echo", servers.echo))
        }
    taken = {name: np.array(values[_WARM_UP:]) / 1e3 for name, values in times.items()}
    engines = {
        f"{name}_{figure}": value
        for name in ("engine", "engine_in_process")
        if name in taken
        for figure, value in (
            ("p50_us", _percentile(taken[name], 50)),
            ("p99_us", _percentile(taken[name], 99)),
            ("echo_ratio", round(float(np.median(taken[name]) / np.median(taken["echo"])), 3)),
        )
    }
    return {
        **engines,
        "batch": plan.batch,
        "client": plan.client,
        "steps": plan.steps,
        "request_bytes": len(request),
        "reply_bytes": len(reply),
        "p50_us": _percentile(taken["stream"], 50),
        "p99_us": _percentile(taken["stream"], 99),
        "echo_p50_us": _percentile(taken["echo"], 50),
        "echo_p99_us": _percentile(taken["echo"], 99),
        "socket_p50_us": _percentile(taken["socket"], 50),
        "client_p50_us": _percentile(taken["client"], 50),
        "client_p99_us": _percentile(taken["client"], 99),
        "echo_ratio": round(float(np.median(taken["stream"]) / np.median(taken["echo"])), 3),
        "client_echo_ratio": round(float(np.median(taken["client"]) / np.median(taken["echo"])), 3),
        "rpc_per_s": usage["stream"][0],
        "client_rpc_per_s": usage["client"][0],
        "cpu_us_per_rpc": usage["stream"][1],
        "client_cpu_us_per_rpc": usage["client"][1],
        "echo_cpu_us_per_rpc": usage["echo"][1],
    }


async def _usage(contender: Contender, server: int, steps: int) -> tuple[float, float]:
    """Return steps per second, one at a time without pause, and microseconds of processor time of each."""
    before_s, started_s = _busy_s(server), time.perf_counter()
    for _ in range(steps):
        await contender()
    elapsed_s, busy_s = time.perf_counter() - started_s, _busy_s(server) - before_s
    return round(steps / elapsed_s, 1), round(busy_s / steps * 1e6, 1)


def _busy_s(server: int) -> float:
    """Return the processor time of this process and of another one, seconds."""
    try:
        # Exact, where times of processes come in ticks of 10 ms.
        tasks = list(Path(f"/proc/{server}/task").iterdir())
        other_s = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9
    except OSError:
        times = psutil.Process(server).cpu_times()
        other_s = times.user + times.system
    return time.process_time() + other_s


def _percentile(times_us: Any, percent: float) -> float:
    return round(float(np.percentile(times_us, percent)), 1)


async def _typical_bytes(plan: Plan, config: ClientConfig) -> tuple[bytes, bytes]:
    """Return a request and its answer, of the median size among some steps."""
    batch = _Batch(plan)
    pairs: list[tuple[bytes, bytes]] = []
    async with _opened_stream(config, batch) as call:
        for step_id in range(_SAMPLES + 1):
            request = convert.encode_step(step_id + 1, batch.next_request())
            await call.write(request)
            pairs.append((request, await call.read()))
    return sorted(pairs[1:], key=lambda pair: len(pair[1]))[_SAMPLES // 2]  # the first brings the prompt


@contextlib.asynccontextmanager
async def _opened_stream(config: ClientConfig, batch: _Batch) -> AsyncIterator[Any]:
    """Yield a stream of steps on sessions that are open, as bytes."""
    async with connect_channel_async(config.address, config) as channel:
        open_session: Any = channel.unary_unary(_SERVICE + "OpenSession", None, None)
        for session_id in batch.session_ids:
            await open_session(
                convert.encode_open_request(OpenRequest(session_id, cost=batch.cost)).SerializeToString()
            )
        method: Any = channel.stream_stream(_SERVICE + "StreamDraft", None, None)
        call = method()
        yield call
        call.cancel()


@contextlib.asynccontextmanager
async def _streaming(plan: Plan, config: ClientConfig) -> AsyncIterator[Contender]:
    """Yield what makes one StreamDraft exchange, from a step's values to checked arrays of its answer."""
    batch = _Batch(plan)
    budgets = [plan.draft.k] * plan.batch
    step_ids = itertools.count(1)

    def read(payload: bytes) -> None:
        answer = convert.decode_step_answer(
            payload, budgets=budgets, strategy=plan.draft.strategy, vocabulary_size=plan.vocabulary_size
        )
        if len(answer.sequences) != plan.batch:
            raise SpeculantError("an answer has too few sequences; run it again")

    if plan.client == "asyncio":
        async with _opened_stream(config, batch) as call:

            async def exchange() -> int:
                request = batch.next_request()
                started_ns = time.perf_counter_ns()
                await call.write(convert.encode_step(next(step_ids), request))
                read(await call.read())
                return time.perf_counter_ns() - started_ns

            yield exchange
        return
    with connect_channel(config.address, config) as channel:
        open_session: Any = channel.unary_unary(_SERVICE + "OpenSession", None, None)
        for session_id in batch.session_ids:
            open_session(convert.encode_open_request(OpenRequest(session_id, cost=plan.cost)).SerializeToString())
        requests: SimpleQueue[bytes | None] = SimpleQueue()
        answers: Any = channel.stream_stream(_SERVICE + "StreamDraft", None, None)(iter(requests.get, None))

        async def exchange_blocking() -> int:
            request = batch.next_request()
            started_ns = time.perf_counter_ns()
            requests.put(convert.encode_step(next(step_ids), request))
            read(next(answers))
            return time.perf_counter_ns() - started_ns

        yield exchange_blocking
        requests.put(None)


@contextlib.asynccontextmanager
async def _drafting(plan: Plan, config: ClientConfig) -> AsyncIterator[Contender]:
    """Yield what makes one step through a client of ours."""
    batch = _Batch(plan)
    settings: dict[str, Any] = {"tokenizer": None, "draft": plan.draft, "strict": True, "cost": plan.cost}
    if plan.client == "asyncio":
        async with AsyncDrafterClient(config, **settings) as client:
            for session_id in batch.session_ids:
                await client.open(session_id)

            async def draft() -> int:
                steps = batch.next_steps()
                started_ns = time.perf_counter_ns()
                await client.draft(steps)
                return time.perf_counter_ns() - started_ns

            yield draft
            _require_all(client.statistics)
        return
    with DrafterClient(config, **settings) as blocking:
        for session_id in batch.session_ids:
            blocking.open(session_id)

        async def draft_blocking() -> int:
            steps = batch.next_steps()
            started_ns = time.perf_counter_ns()
            blocking.draft(steps)
            return time.perf_counter_ns() - started_ns

        yield draft_blocking
        _require_all(blocking.statistics)


def _require_all(statistics: DrafterStatistics) -> None:
    if statistics.failed_steps:
        raise SpeculantError(f"{statistics.failed_steps} steps failed: {statistics.last_failure}; run it again")


@contextlib.asynccontextmanager
async def _echoing(
    plan: Plan, address: str, config: ClientConfig, request: bytes, reply: bytes
) -> AsyncIterator[Contender]:
    """Yield what sends one message over a bare stream."""
    if plan.client == "asyncio":
        async with connect_channel_async(address, config) as channel:
            method: Any = channel.stream_stream(rpc_echo.METHOD, None, None)
            call = method()
            await call.write(rpc_echo.SET + reply)
            await call.read()

            async def echo() -> int:
                started_ns = time.perf_counter_ns()
                await call.write(request)
                await call.read()
                return time.perf_counter_ns() - started_ns

            yield echo
            call.cancel()
        return
    with connect_channel(address, config) as blocking:
        requests: SimpleQueue[bytes | None] = SimpleQueue()
        answers: Any = blocking.stream_stream(rpc_echo.METHOD, None, None)(iter(requests.get, None))
        requests.put(rpc_echo.SET + reply)
        next(answers)

        async def echo_blocking() -> int:
            started_ns = time.perf_counter_ns()
            requests.put(request)
            next(answers)
            return time.perf_counter_ns() - started_ns

        yield echo_blocking
        requests.put(None)


@contextlib.contextmanager
def _raw_socket(address: str, request: bytes, reply: bytes) -> Iterator[Any]:
    with rpc_echo.connect(address) as connection:
        rpc_echo.write_message(connection, rpc_echo.SET + reply)
        rpc_echo.read_message(connection)

        async def echo() -> int:
            started_ns = time.perf_counter_ns()
            rpc_echo.write_message(connection, request)
            rpc_echo.read_message(connection)
            return time.perf_counter_ns() - started_ns

        yield echo


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
