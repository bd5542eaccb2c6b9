"""Steps of one batch size over a drafter and a bare gRPC echo, in interleaved trials."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import psutil

from speculant_graph.bench import echo
from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.draft.cost import COST_CURVES
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.messages import OpenRequest, SequenceRequest, StepRequest
from speculant_graph.types import DraftOptions, SequenceStep

TOKENS_PER_STEP = 4
"""Accepted tokens that a step brings."""
PROMPT_TOKENS = 200
"""Tokens of a sequence before its first step."""

_COST = COST_CURVES["dense"]
_WARM_UP = 50
_SAMPLES = 40
_SERVICE = "/speculant_graph.rpc.v1.DrafterService/"

Exchange = Callable[[bytes], bytes]
"""Sends a message and returns the answer."""
Trial = Callable[[], int]
"""Makes one step and returns its nanoseconds."""


@dataclass(frozen=True, slots=True)
class RpcWorkload:
    """What is asked for."""

    draft: DraftConfig
    """How is drafted; ``k`` tokens for every sequence."""
    texts: list[list[int]]
    """One text for every sequence of the batch, long enough for all steps."""
    vocabulary_size: int
    """Token ids are below it."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    address: str
    """Where it listens."""
    process: psutil.Process
    """What it is."""


def measure_steps(workload: RpcWorkload, servers: Mapping[str, Server], num_steps: int) -> dict[str, Any]:
    """Return the figures of one batch size, times in microseconds.

    Trials are interleaved step by step, so that none finds the processor's caches as it left them: between two drafts
    of a server lies a pass of its model.

    Args:
        workload: what is asked for.
        servers: ``drafter`` and ``echo``.
        num_steps: timed steps of each kind.

    Raises:
        SpeculantError: a step failed.
    """
    config = ClientConfig(address=servers["drafter"].address, deadline_ms=30_000.0)
    with ExitStack() as stack:
        with _drafting_stream(workload, config) as (batch, exchange):
            request, reply = _typical_bytes(batch, exchange)
        trials: dict[str, Trial] = {
            "stream": stack.enter_context(_stream_steps(workload, config)),
            "client": stack.enter_context(_client_steps(workload, config)),
            "echo": _echoes(stack.enter_context(_stream(servers["echo"].address, echo.METHOD)), request, reply),
        }
        names = list(trials)
        taken_ns: dict[str, list[int]] = {name: [] for name in names}
        for step in range(_WARM_UP + num_steps):
            for offset in range(len(names)):  # each is first, second, ... equally often
                name = names[(step + offset) % len(names)]
                taken_ns[name].append(trials[name]())
        rpc_per_s, cpu_us = _usage(trials["stream"], servers["drafter"].process, num_steps // 2)
        _, echo_cpu_us = _usage(trials["echo"], servers["echo"].process, num_steps // 2)
    taken_us = {name: np.array(each[_WARM_UP:]) / 1e3 for name, each in taken_ns.items()}
    p50 = {name: round(float(np.percentile(each, 50)), 1) for name, each in taken_us.items()}
    p99 = {name: round(float(np.percentile(each, 99)), 1) for name, each in taken_us.items()}
    return {
        "batch": len(workload.texts),
        "transport": "uds",
        "request_bytes": len(request),
        "reply_bytes": len(reply),
        "p50_us": p50["stream"],
        "p99_us": p99["stream"],
        "echo_p50_us": p50["echo"],
        "echo_p99_us": p99["echo"],
        "client_p50_us": p50["client"],
        "client_p99_us": p99["client"],
        "echo_ratio": round(p50["stream"] / p50["echo"], 3),
        "client_echo_ratio": round(p50["client"] / p50["echo"], 3),
        "rpc_per_s": rpc_per_s,
        "cpu_us_per_rpc": cpu_us,
        "echo_cpu_us_per_rpc": echo_cpu_us,
    }


def _usage(trial: Trial, server: psutil.Process, num_steps: int) -> tuple[float, float]:
    """Return steps a second, one after another without pause, and microseconds of processor time of each."""
    before_s, started_s = _busy_s(server), time.perf_counter()
    for _ in range(num_steps):
        trial()
    elapsed_s, busy_s = time.perf_counter() - started_s, _busy_s(server) - before_s
    return round(num_steps / elapsed_s, 1), round(busy_s / num_steps * 1e6, 1)


def _busy_s(server: psutil.Process) -> float:
    """Return the processor time of this process and of a server, seconds; the server's comes in ticks of 10 ms."""
    times = server.cpu_times()
    return time.process_time() + times.user + times.system


class _Batch:
    """Sequences that grow from step to step."""

    def __init__(self, workload: RpcWorkload) -> None:
        self._workload = workload
        self._sent, self._end = 0, PROMPT_TOKENS
        self._grown = [text[:PROMPT_TOKENS] for text in workload.texts]
        self.session_ids = [secrets.randbits(62) + 1 for _ in workload.texts]

    def next_request(self) -> StepRequest:
        """Return the next step as it travels: what is new."""
        start, self._sent = self._sent, self._end
        self._end += TOKENS_PER_STEP
        draft = self._workload.draft
        sequences = tuple(
            SequenceRequest(tuple(text[start : self._sent]), session_id, start, draft.k, session_id)
            for session_id, text in zip(self.session_ids, self._workload.texts, strict=True)
        )
        return StepRequest(sequences, DraftOptions(draft.strategy, draft.max_candidates))

    def next_steps(self) -> list[SequenceStep]:
        """Return the next step as a client is given it: whole sequences."""
        start, self._end = self._end, self._end + TOKENS_PER_STEP
        for grown, text in zip(self._grown, self._workload.texts, strict=True):
            grown.extend(text[start : self._end])
        return [
            SequenceStep(session_id, grown, self._workload.draft.k, session_id)
            for session_id, grown in zip(self.session_ids, self._grown, strict=True)
        ]


@contextmanager
def _stream(address: str, method: str, config: ClientConfig | None = None) -> Iterator[Exchange]:
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    with connect_channel(address, config) as channel:
        call: Any = channel.stream_stream(method, None, None)
        answers = call(iter(requests.get, None))

        def exchange(payload: bytes) -> bytes:
            requests.put(payload)
            answer: bytes = next(answers)
            return answer

        yield exchange
        requests.put(None)


@contextmanager
def _drafting_stream(workload: RpcWorkload, config: ClientConfig) -> Iterator[tuple[_Batch, Exchange]]:
    """Yield sequences whose sessions are open, and what exchanges their steps."""
    batch = _Batch(workload)
    with connect_channel(config.address, config) as channel:
        open_session: Any = channel.unary_unary(_SERVICE + "OpenSession", None, None)
        for session_id in batch.session_ids:
            open_session(convert.encode_open_request(OpenRequest(session_id, cost=_COST)).SerializeToString())
    with _stream(config.address, _SERVICE + "StreamDraft", config) as exchange:
        yield batch, exchange


def _typical_bytes(batch: _Batch, exchange: Exchange) -> tuple[bytes, bytes]:
    """Return a request and its answer, of the median size among some steps."""
    pairs: list[tuple[bytes, bytes]] = []
    for step_id in range(_SAMPLES + 1):
        request = convert.encode_step(step_id + 1, batch.next_request())
        pairs.append((request, exchange(request)))
    return sorted(pairs[1:], key=lambda pair: len(pair[1]))[_SAMPLES // 2]  # the first brings the prompt


@contextmanager
def _stream_steps(workload: RpcWorkload, config: ClientConfig) -> Iterator[Trial]:
    """Yield what makes one StreamDraft exchange, from a step's values to checked arrays of its answer."""
    budgets = [workload.draft.k] * len(workload.texts)
    step_ids = itertools.count(1)
    with _drafting_stream(workload, config) as (batch, exchange):

        def step() -> int:
            request = batch.next_request()
            started_ns = time.perf_counter_ns()
            convert.decode_step_answer(
                exchange(convert.encode_step(next(step_ids), request)),
                budgets=budgets,
                strategy=workload.draft.strategy,
                vocabulary_size=workload.vocabulary_size,
            )
            return time.perf_counter_ns() - started_ns

        yield step


@contextmanager
def _client_steps(workload: RpcWorkload, config: ClientConfig) -> Iterator[Trial]:
    """Yield what makes one step through our client."""
    batch = _Batch(workload)
    with DrafterClient(config, tokenizer=None, draft=workload.draft, strict=True, cost=_COST) as client:
        for session_id in batch.session_ids:
            client.open(session_id)

        def step() -> int:
            steps = batch.next_steps()
            started_ns = time.perf_counter_ns()
            client.draft(steps)
            return time.perf_counter_ns() - started_ns

        yield step
        statistics = client.statistics
    if statistics.failed_steps:
        raise SpeculantError(f"{statistics.failed_steps} steps failed: {statistics.last_failure}; run it again")


def _echoes(exchange: Exchange, request: bytes, reply: bytes) -> Trial:
    """Return what sends one message to an echo that answers with the reply."""
    exchange(echo.SET + reply)

    def step() -> int:
        started_ns = time.perf_counter_ns()
        exchange(request)
        return time.perf_counter_ns() - started_ns

    return step
