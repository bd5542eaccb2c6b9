"""``speculant bench rpc``: steps over the wire, against echoes of the same bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from speculant_graph.bench.arguments import COMMAS, EACH_ONCE
from speculant_graph.config import DraftConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.rpc_trials import Server

TransportName = Literal["uds", "tcp"]
"""Unix socket, or TCP on the loopback interface."""


class BenchRpcSettings(CommandSettings):
    """Draft over the wire for sequences that grow, and time each step.

    The drafter runs in its own process. In the same run, in interleaved trials, a bare gRPC stream and a raw socket
    carry the same bytes to and from processes that only echo.
    """

    # One setting of a section leaves the bench's own defaults of the others.
    model_config = SettingsConfigDict(nested_model_default_partial_update=True)

    batch: Annotated[list[Annotated[int, Field(ge=1, le=256)]], COMMAS, EACH_ONCE] = [1, 8, 32]  # noqa: RUF012
    """Sequences of a step, one or several numbers."""
    transport: Annotated[list[TransportName], COMMAS, EACH_ONCE] = ["uds"]  # noqa: RUF012
    """'uds': a Unix socket. 'tcp': the loopback interface."""
    graph: Path | None = None
    """Draft from this graph file; by default from one of the words of Python's own sources."""
    steps: Annotated[int, Field(ge=100, le=100_000)] = 2_000
    """Steps that are timed, of each kind; at least 100."""
    client_cost: bool = False
    """Send with every session what verifying costs, as the verifier does: drafts are as long as pays."""
    pin: bool = True
    """Give the servers and this process a core each, as a deployment would."""
    seed: int = 0
    """Seed of the texts."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    draft: DraftConfig = DraftConfig(k=10, strategy="sampling", max_candidates=8)
    """What is asked for; by default ten tokens with distributions of up to eight."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchRpcSettings, "bench rpc", arguments)
    from speculant_graph.bench.drawn_texts import drawn_texts, words_of_standard_library
    from speculant_graph.bench.progress import show_progress
    from speculant_graph.bench.report import print_report
    from speculant_graph.bench.rpc_trials import PROMPT_TOKENS, TOKENS_PER_STEP, RpcWorkload, measure_steps
    from speculant_graph.draft.cost import COST_CURVES
    from speculant_graph.graph.build.builder import build_from_token_ids
    from speculant_graph.graph.ngrams import NgramGraph

    results: list[dict[str, Any]] = []
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
        texts = drawn_texts(graph, max(settings.batch), num_tokens, settings.seed)
        cost = COST_CURVES["dense"] if settings.client_cost else None
        for transport in settings.transport:
            progress.begin(f"starting servers ({transport})")
            with _running_servers(transport, path, folder) as servers, _pinned(settings.pin, servers):
                for batch in settings.batch:
                    progress.begin(f"{transport}, batch of {batch}")
                    workload = RpcWorkload(settings.draft, texts[:batch], graph.vocabulary_size, cost)
                    results.append({"transport": transport, **measure_steps(workload, servers, settings.steps)})
    figures = {
        "graph_tokens": graph.metadata.num_tokens,
        "strategy": settings.draft.strategy,
        "k": settings.draft.k,
        "max_candidates": settings.draft.max_candidates,
        "pinned": settings.pin and len(os.sched_getaffinity(0)) > 1,
        **(results[0] if len(settings.batch) == 1 else {}),
        "results": results,
    }
    print_report("rpc", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0


@contextmanager
def _running_servers(transport: TransportName, graph: Path, folder: Path) -> Iterator[dict[str, Server]]:
    """Run a drafter and the two echoes inside of the block.

    Raises:
        SpeculantError: one does not start.
    """
    import psutil

    from speculant_graph.bench.processes import HOST, await_health, free_ports, running_module
    from speculant_graph.bench.rpc_trials import Server

    names = ("drafter", "grpc", "socket")
    if transport == "uds":
        addresses = dict(zip(names, (f"unix://{folder}/{name}.sock" for name in names), strict=True))
    else:
        addresses = dict(zip(names, (f"{HOST}:{port}" for port in free_ports(len(names))), strict=True))
    drafter = ["--listen", addresses["drafter"], "--server.graph", str(graph), "--log-level", "WARNING"]
    with ExitStack() as stack:
        processes = {"drafter": stack.enter_context(running_module("speculant_drafter", drafter))}
        for kind in ("grpc", "socket"):
            process = running_module("speculant_graph.bench.echo", [kind, addresses[kind]])
            processes[kind] = stack.enter_context(process)
        await_health(processes["drafter"], addresses["drafter"])
        for kind in ("grpc", "socket"):
            output = processes[kind].stdout
            if output is None or not output.readline():
                raise SpeculantError("an echo server did not start; its message is above")
        yield {name: Server(addresses[name], psutil.Process(processes[name].pid)) for name in names}


@contextmanager
def _pinned(is_wanted: bool, servers: dict[str, Server]) -> Iterator[None]:
    """Keep this process on one core and the servers on another inside of the block, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    if not is_wanted or len(cores) < 2:
        yield
        return
    for server in servers.values():
        server.process.cpu_affinity(cores[1:2])
    os.sched_setaffinity(0, cores[:1])
    try:
        yield
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
            (f"{result['transport']}, batch of {result['batch']}", ""),
            ("  StreamDraft", f"{result['p50_us']:,.0f} / {result['p99_us']:,.0f} µs"),
            (f"  gRPC echo, {result['request_bytes']:,} + {result['reply_bytes']:,} bytes; above over it",
             f"{result['echo_p50_us']:,.0f} / {result['echo_p99_us']:,.0f} µs; ×{result['echo_ratio']:.2f}"),
            ("  whole step of our client; over the echo",
             f"{result['client_p50_us']:,.0f} / {result['client_p99_us']:,.0f} µs; ×{result['client_echo_ratio']:.2f}"),
            ("  raw socket echo", f"{result['socket_p50_us']:,.0f} µs"),
            ("  a second, without pause: StreamDraft; client",
             f"{result['rpc_per_s']:,.0f}; {result['client_rpc_per_s']:,.0f}"),
            ("  processor time: StreamDraft; client; echo",
             f"{result['cpu_us_per_rpc']:,.0f}; {result['client_cpu_us_per_rpc']:,.0f}; "
             f"{result['echo_cpu_us_per_rpc']:,.0f} µs"),
        ]  # fmt: skip
    return rows
