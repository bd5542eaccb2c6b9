"""``speculant bench rpc``: steps over the wire, against echoes of the same bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from speculant_graph.bench.report import COMMAS, EACH_ONCE, BenchSettings, print_report, show_progress
from speculant_graph.config import DraftConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.settings import load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.rpc_trials import Server


class BenchRpcSettings(BenchSettings):
    """Draft over the wire for sequences that grow, and time each step.

    The drafter runs in its own process, on a core of its own where there are two. In the same run, in interleaved
    trials, a bare gRPC stream carries the same bytes to and from a process that only echoes.
    """

    # One setting of a section leaves the bench's own defaults of the others.
    model_config = SettingsConfigDict(nested_model_default_partial_update=True)

    batch: Annotated[list[Annotated[int, Field(ge=1, le=256)]], COMMAS, EACH_ONCE] = [1, 8, 32]  # noqa: RUF012
    """Sequences of a step, one or several numbers."""
    graph: Path | None = None
    """Draft from this graph file; by default from one of the words of Python's own sources."""
    steps: Annotated[int, Field(ge=100, le=100_000)] = 2_000
    """Steps that are timed, of each kind; at least 100."""
    draft: DraftConfig = DraftConfig(k=10, strategy="sampling", max_candidates=8)
    """What is asked for; by default ten tokens with distributions of up to eight. What passes cost is sent with every
    session, as the verifier does, so that trees are as long as pays."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchRpcSettings, "bench rpc", arguments)
    from speculant_graph.bench.rpc_trials import PROMPT_TOKENS, TOKENS_PER_STEP, RpcWorkload, measure_steps
    from speculant_graph.bench.texts import drawn_texts, words_of_standard_library
    from speculant_graph.graph.build.builder import build_from_token_ids
    from speculant_graph.graph.ngrams import NgramGraph

    with tempfile.TemporaryDirectory(prefix="speculant-bench-") as temporary, show_progress() as progress:
        folder = Path(temporary)
        if settings.graph is None:
            progress.begin("counting Python's own sources")
            graph, path = build_from_token_ids(*words_of_standard_library()), folder / "graph.pkl"
            graph.save(path)
        else:
            graph, path = NgramGraph.load(settings.graph), settings.graph
        progress.begin("drawing texts")
        num_tokens = PROMPT_TOKENS + TOKENS_PER_STEP * (2 * settings.steps + 200)
        texts = drawn_texts(graph, max(settings.batch), num_tokens)
        results: list[dict[str, Any]] = []
        progress.begin("starting servers")
        with _running_servers(path, folder) as servers:
            for batch in settings.batch:
                progress.begin(f"batch of {batch}")
                workload = RpcWorkload(settings.draft, texts[:batch], graph.vocabulary_size)
                results.append(measure_steps(workload, servers, settings.steps))
    figures = {
        "graph_tokens": graph.metadata.num_tokens,
        "strategy": settings.draft.strategy,
        "k": settings.draft.k,
        "max_candidates": settings.draft.max_candidates,
        **(results[0] if len(settings.batch) == 1 else {}),
        "results": results,
    }
    print_report("rpc", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0


@contextmanager
def _running_servers(graph: Path, folder: Path) -> Iterator[dict[str, Server]]:
    """Run a drafter and the echo inside of the block, on a core, and this process on another, where there are two.

    Raises:
        SpeculantError: one does not start.
    """
    import psutil

    from speculant_graph.bench.processes import OwnDrafter, running_module
    from speculant_graph.bench.rpc_trials import Server

    address = f"unix://{folder}/echo.sock"
    cores = sorted(os.sched_getaffinity(0))
    with (
        closing(OwnDrafter(graph, f"unix://{folder}/drafter.sock")) as drafter,
        running_module("speculant_graph.bench.echo", [address]) as echo,
    ):
        if echo.stdout is None or not echo.stdout.readline():
            raise SpeculantError("the echo server did not start; its message is above")
        servers = {
            "drafter": Server(drafter.address, psutil.Process(drafter.process.pid)),
            "echo": Server(address, psutil.Process(echo.pid)),
        }
        for server in servers.values():
            server.process.cpu_affinity(cores[1:2] or cores)
        os.sched_setaffinity(0, cores[:1])
        try:
            yield servers
        finally:
            os.sched_setaffinity(0, cores)


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("graph", f"{figures['graph_tokens']:,} tokens"),
        ("a step", f"{figures['k']} tokens by {figures['strategy']}"),
        ("figures", "median / 99th percentile"),
    ]
    for result in figures["results"]:
        rows += [
            (f"batch of {result['batch']}", ""),
            ("  StreamDraft", f"{result['p50_us']:,.0f} / {result['p99_us']:,.0f} µs"),
            (f"  gRPC echo, {result['request_bytes']:,} + {result['reply_bytes']:,} bytes; above over it",
             f"{result['echo_p50_us']:,.0f} / {result['echo_p99_us']:,.0f} µs; ×{result['echo_ratio']:.2f}"),
            ("  whole step of our client; over the echo",
             f"{result['client_p50_us']:,.0f} / {result['client_p99_us']:,.0f} µs; ×{result['client_echo_ratio']:.2f}"),
            ("  StreamDraft a second, without pause", f"{result['rpc_per_s']:,.0f}"),
            ("  processor time: StreamDraft; echo",
             f"{result['cpu_us_per_rpc']:,.0f}; {result['echo_cpu_us_per_rpc']:,.0f} µs"),
        ]  # fmt: skip
    return rows
