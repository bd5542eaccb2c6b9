"""``speculant bench rpc``: measures the latency of draft requests against echoes of the same bytes."""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any

import numpy as np
import psutil
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from speculant_graph._core import RequestWriter
from speculant_graph.bench import echo
from speculant_graph.bench.processes import OwnDrafter, running_module
from speculant_graph.bench.report import COMMAS, alternate, begin, print_report
from speculant_graph.bench.texts import drawn_texts, words_of_standard_library
from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig, NgramDraftConfig
from speculant_graph.draft.options import require_source
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.step_messages import OpenRequest
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_graph.types import DraftOptions, SequenceStep

_TOKENS_PER_STEP = 4
_PROMPT_TOKENS = 200
_LEAST_PROBABILITY = 0.05
_WARM_UP = 50
_SAMPLES = 40
_SERVICE = "/speculant_graph.rpc.v1.DrafterService/"

Exchange = Callable[[bytes], bytes]
"""A function that sends a message and returns the response."""
Request = Callable[[], RequestWriter]
"""A function that makes the request message of one step."""
Trial = Callable[[int], int]
"""A function that runs one step and returns its duration in nanoseconds."""
Servers = Mapping[str, tuple[str, psutil.Process]]
"""Address and process of each server, by name: ``drafter`` and ``echo``."""


class BenchRpcSettings(ReportingSettings):
    """Request drafts over gRPC for growing sequences, and time each step.

    The drafter runs in a separate process, and on a separate CPU core if there are at least two. For comparison,
    interleaved trials send the same bytes over a bare gRPC stream to a process that only echoes.
    """

    # Setting one option of a section keeps the bench's own defaults of the others.
    model_config = SettingsConfigDict(nested_model_default_partial_update=True)

    batch: Annotated[list[Annotated[int, Field(ge=1, le=256)]], COMMAS] = [1, 8, 32]  # noqa: RUF012
    """Batch sizes to measure (sequences per step), separated by commas."""
    graph: Path | None = None
    """Graph file to draft from; by default, a graph of the words of Python's own sources."""
    steps: Annotated[int, Field(ge=100, le=100_000)] = 2_000
    """Number of steps to time for each kind of trial, at least 100."""
    draft: NgramDraftConfig = NgramDraftConfig(k=10, strategy="sampling", max_candidates=8)
    """Drafting options of the requests; by default ten tokens, each with a distribution over up to eight candidates. As
    in a verifier's requests, trees omit nodes that can't pay off: here, all nodes with a probability below 0.05."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchRpcSettings, "bench rpc", arguments)
    require_source(settings.draft, has_graph=True)
    with tempfile.TemporaryDirectory(prefix="speculant-bench-") as name:
        folder = Path(name)
        if settings.graph is None:
            begin("counting Python's own sources")
            graph, path = build_from_token_ids(*words_of_standard_library()), folder / "graph.pkl"
            graph.save(path)
        else:
            graph, path = NgramGraph.load(settings.graph), settings.graph
        begin("drawing texts")
        num_tokens = _PROMPT_TOKENS + _TOKENS_PER_STEP * (2 * settings.steps + 200)
        texts = drawn_texts(graph, max(settings.batch), num_tokens)
        results: list[dict[str, Any]] = []
        begin("starting servers")
        with _running_servers(path, folder) as servers:
            for batch in settings.batch:
                begin(f"batch of {batch}")
                config = ClientConfig(address=servers["drafter"][0], deadline_ms=30_000.0)
                steps = _Steps(config, settings.draft, texts[:batch], graph.vocabulary_size)
                results.append(_measure_steps(steps, servers, settings.steps))
    figures = {
        "graph_tokens": graph.metadata.num_tokens,
        "strategy": settings.draft.strategy,
        "k": settings.draft.k,
        "max_candidates": settings.draft.max_candidates,
        "results": results,
    }
    print_report("rpc", figures, arguments, as_json=settings.json_output)
    return 0


@contextmanager
def _running_servers(graph: Path, folder: Path) -> Iterator[Servers]:
    """Run a drafter and the echo server on one core during the block, and this process on another if possible.

    Raises:
        SpeculantError: a server does not start.
    """
    address = f"unix://{folder}/echo.sock"
    cores = sorted(os.sched_getaffinity(0))
    with (
        closing(OwnDrafter(graph, f"unix://{folder}/drafter.sock")) as drafter,
        running_module("speculant_graph.bench.echo", [address]) as echoing,
    ):
        if echoing.stdout is None or not echoing.stdout.readline():
            raise SpeculantError("the echo server did not start; its message is above")
        servers = {
            "drafter": (drafter.address, psutil.Process(drafter.process.pid)),
            "echo": (address, psutil.Process(echoing.pid)),
        }
        for _, process in servers.values():
            process.cpu_affinity(cores[1:2] or cores)
        os.sched_setaffinity(0, cores[:1])
        try:
            yield servers
        finally:
            os.sched_setaffinity(0, cores)


def _measure_steps(steps: _Steps, servers: Servers, num_steps: int) -> dict[str, Any]:
    """Measure one batch size, and return its figures, with times in microseconds.

    Trials are interleaved step by step, so that no trial finds warm CPU caches. A real engine also drafts with cold CPU
    caches, because a forward pass runs between two drafts.

    Raises:
        SpeculantError: a step failed.
    """
    with ExitStack() as stack:
        request, reply = steps.typical_bytes()
        trials = {
            "stream": stack.enter_context(steps.over_stream()),
            "client": stack.enter_context(steps.by_client()),
            "echo": _echoes(stack.enter_context(_stream(servers["echo"][0], echo.METHOD)), request, reply),
        }
        taken_ns = alternate(trials, _WARM_UP + num_steps)
        rpc_per_s, cpu_us = _usage(trials["stream"], servers["drafter"][1], num_steps // 2)
        _, echo_cpu_us = _usage(trials["echo"], servers["echo"][1], num_steps // 2)
    figures: dict[str, Any] = {
        "batch": len(steps.texts), "transport": "uds", "request_bytes": len(request), "reply_bytes": len(reply)
    }  # fmt: skip
    for prefix, name in (("", "stream"), ("echo_", "echo"), ("client_", "client")):
        for percent in (50, 99):
            taken_us = float(np.percentile(taken_ns[name][_WARM_UP:], percent)) / 1e3
            figures[f"{prefix}p{percent}_us"] = round(taken_us, 1)
    return figures | {
        "echo_ratio": round(figures["p50_us"] / figures["echo_p50_us"], 3),
        "client_echo_ratio": round(figures["client_p50_us"] / figures["echo_p50_us"], 3),
        "rpc_per_s": rpc_per_s,
        "cpu_us_per_rpc": cpu_us,
        "echo_cpu_us_per_rpc": echo_cpu_us,
    }


def _usage(trial: Trial, server: psutil.Process, num_steps: int) -> tuple[float, float]:
    """Run steps without pauses; return the steps per second, and the CPU time per step in microseconds."""
    before_s, started_s = _busy_s(server), time.perf_counter()
    for index in range(num_steps):
        trial(index)
    elapsed_s, busy_s = time.perf_counter() - started_s, _busy_s(server) - before_s
    return round(num_steps / elapsed_s, 1), round(busy_s / num_steps * 1e6, 1)


def _busy_s(server: psutil.Process) -> float:
    """Return the CPU seconds of this process plus those of a server; the server's are counted in 10 ms ticks."""
    times = server.cpu_times()
    return time.process_time() + times.user + times.system


class _Steps:
    """Runs the steps of a batch of texts over several transports, each of which has its own sessions."""

    def __init__(self, config: ClientConfig, draft: DraftConfig, texts: list[list[int]], vocabulary_size: int) -> None:
        self._config, self._draft, self._vocabulary_size = config, draft, vocabulary_size
        self.texts = texts

    def typical_bytes(self) -> tuple[bytes, bytes]:
        """Run some steps; return the request and the response of the step whose response has the median size."""
        pairs: list[tuple[bytes, bytes]] = []
        with self._opened_stream() as (requests, exchange):
            for step_id in range(1, _SAMPLES + 2):
                request = next(requests)().payload(step_id)
                pairs.append((request, exchange(request)))
        return sorted(pairs[1:], key=lambda pair: len(pair[1]))[_SAMPLES // 2]  # the first request has the prompt

    @contextmanager
    def over_stream(self) -> Iterator[Trial]:
        """Yield a trial of one StreamDraft exchange, from encoding the step to decoding and checking the response."""
        budgets = [self._draft.k] * len(self.texts)
        step_ids = itertools.count(1)
        with self._opened_stream() as (requests, exchange):

            def step(_: int) -> int:
                begin_request = next(requests)
                started_ns = time.perf_counter_ns()
                convert.decode_step_answer(
                    exchange(begin_request().payload(next(step_ids))),
                    budgets=budgets,
                    strategy=self._draft.strategy,
                    vocabulary_size=self._vocabulary_size,
                )
                return time.perf_counter_ns() - started_ns

            yield step

    @contextmanager
    def by_client(self) -> Iterator[Trial]:
        """Yield a trial of one step through :class:`DrafterClient`, which takes whole sequences."""
        session_ids, ends = self._new_ids(), itertools.count(_PROMPT_TOKENS + _TOKENS_PER_STEP, _TOKENS_PER_STEP)
        grown = [text[:_PROMPT_TOKENS] for text in self.texts]
        with DrafterClient(self._config, tokenizer=None, draft=self._draft, strict=True) as client:
            for session_id in session_ids:
                client.open(session_id)

            def step(_: int) -> int:
                end = next(ends)
                for tokens, text in zip(grown, self.texts, strict=True):
                    tokens.extend(text[end - _TOKENS_PER_STEP : end])
                steps = [
                    SequenceStep(session_id, tokens, self._draft.k, session_id, least_probability=_LEAST_PROBABILITY)
                    for session_id, tokens in zip(session_ids, grown, strict=True)
                ]
                started_ns = time.perf_counter_ns()
                client.draft(steps)
                return time.perf_counter_ns() - started_ns

            yield step
            statistics = client.statistics
        if statistics.failed_steps:
            raise SpeculantError(f"{statistics.failed_steps} steps failed: {statistics.last_failure}; run it again")

    def _new_ids(self) -> list[int]:
        return [secrets.randbits(62) + 1 for _ in self.texts]

    @contextmanager
    def _opened_stream(self) -> Iterator[tuple[Iterator[Request], Exchange]]:
        """Open sessions; yield their requests, and a function that sends a request and returns the response."""
        session_ids = self._new_ids()
        with connect_channel(self._config.address, self._config) as channel:
            open_session: Any = channel.unary_unary(_SERVICE + "OpenSession", None, None)
            for session_id in session_ids:
                open_session(convert.encode_open_request(OpenRequest(session_id)).SerializeToString())
        with _stream(self._config.address, _SERVICE + "StreamDraft", self._config) as exchange:
            yield self._requests(session_ids), exchange

    def _requests(self, session_ids: Sequence[int]) -> Iterator[Request]:
        """Yield the request of each step: the first has the prompts, later ones have the new tokens."""
        start, options = 0, DraftOptions(self._draft.strategy, self._draft.max_candidates)
        for end in itertools.count(_PROMPT_TOKENS, _TOKENS_PER_STEP):
            yield partial(self._request, session_ids, start, [text[start:end] for text in self.texts], options)
            start = end

    def _request(
        self, session_ids: Sequence[int], start: int, new: list[list[int]], options: DraftOptions
    ) -> RequestWriter:
        request = convert.request_writer(options)
        for session_id, tokens in zip(session_ids, new, strict=True):
            request.add(tokens, session_id, start, self._draft.k, session_id, _LEAST_PROBABILITY)
        return request


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


def _echoes(exchange: Exchange, request: bytes, reply: bytes) -> Trial:
    """Return a trial that sends the request to an echo server, which answers with the given reply."""
    exchange(echo.SET + reply)

    def step(_: int) -> int:
        started_ns = time.perf_counter_ns()
        exchange(request)
        return time.perf_counter_ns() - started_ns

    return step
