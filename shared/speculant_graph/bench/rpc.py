"""``speculant bench rpc``: what a step costs over the wire, beside echoes that carry the same bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from speculant_graph.config import DraftConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.rpc_processes import TransportName


def _split(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


class BenchRpcSettings(CommandSettings):
    """Draft over the wire for sequences that grow, and time each step.

    The drafter runs in its own process. In the same run, in turns with it, a bare gRPC stream and a raw socket carry
    the same bytes to and from processes that only echo.
    """

    # One setting of a section leaves the bench's own defaults of the others.
    model_config = SettingsConfigDict(nested_model_default_partial_update=True)

    batch: Annotated[list[Annotated[int, Field(ge=1, le=256)]], BeforeValidator(_split)] = [1, 8, 32]  # noqa: RUF012
    """Sequences of a step, one or several numbers."""
    transport: Annotated[list[Literal["uds", "tcp"]], BeforeValidator(_split)] = ["uds"]  # noqa: RUF012
    """'uds': a Unix socket. 'tcp': the loopback interface."""
    client: Annotated[list[Literal["asyncio", "blocking"]], BeforeValidator(_split)] = ["blocking", "asyncio"]  # noqa: RUF012
    """Which clients of ours to call with; the echo is called in the same manner."""
    tls: bool = False
    """Encrypt; over TCP only."""
    graph: Path | None = None
    """Draft from this graph file; by default from one of the words of Python's own sources."""
    steps: Annotated[int, Field(ge=100, le=100_000)] = 2_000
    """Steps that are timed, of each kind; at least 100."""
    client_cost: bool = False
    """Say with every session what verifying costs, as the verifier does: drafts are as long as pays."""
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
    transports: list[TransportName] = list(settings.transport)
    if settings.tls and transports != ["tcp"]:
        if "transport" in settings.model_fields_set:
            raise ConfigError("a Unix socket is never encrypted; give --transport tcp with --tls")
        transports = ["tcp"]
    from speculant_graph.bench.progress import show_progress
    from speculant_graph.bench.report import print_report
    from speculant_graph.bench.rpc_measure import PROMPT_TOKENS, TOKENS_PER_STEP, Plan, run_plans
    from speculant_graph.bench.rpc_processes import make_certificate, running_servers
    from speculant_graph.bench.rpc_text import drawn_texts, graph_of_standard_library
    from speculant_graph.draft.cost import COST_CURVES
    from speculant_graph.graph.store import load_graph

    cost = COST_CURVES["dense"] if settings.client_cost else None
    results: list[dict[str, Any]] = []
    cores = sorted(os.sched_getaffinity(0))
    pinned = settings.pin and len(cores) > 1
    with tempfile.TemporaryDirectory(prefix="speculant-bench-") as temporary, show_progress() as progress:
        folder = Path(temporary)
        if settings.graph is None:
            progress.begin("counting Python's own sources")
            graph, path = graph_of_standard_library(), folder / "graph.pkl"
            graph.save(path)
        else:
            graph, path = load_graph(settings.graph), settings.graph
        progress.begin("drawing texts")
        num_tokens = PROMPT_TOKENS + TOKENS_PER_STEP * (2 * settings.steps + 200)
        texts = drawn_texts(graph, max(settings.batch), num_tokens, settings.seed)
        certificate = make_certificate(folder) if settings.tls else None
        for transport in transports:
            progress.begin(f"starting servers ({transport})")
            with running_servers(transport, path, [], folder, certificate, cores[1] if pinned else None) as servers:
                plans = [
                    Plan(batch, client, settings.steps, settings.draft, texts[:batch], graph, cost)
                    for client in settings.client
                    for batch in settings.batch
                ]
                if pinned:
                    os.sched_setaffinity(0, cores[:1])
                try:
                    measured = run_plans(
                        plans,
                        servers,
                        certificate,
                        lambda plan: progress.begin(f"{plan.client} client, batch of {plan.batch}"),
                    )
                finally:
                    os.sched_setaffinity(0, cores)
                results += [{"transport": transport, "tls": settings.tls, **result} for result in measured]
    first_batch = {(each["transport"], each["client"]): each for each in reversed(results) if each["batch"] == 1}
    for each in results:
        alone = first_batch.get((each["transport"], each["client"]))
        each["batch_1_ratio"] = round(each["p50_us"] / alone["p50_us"], 3) if alone else None
    figures = {
        "graph_tokens": graph.metadata.num_tokens,
        "strategy": settings.draft.strategy,
        "k": settings.draft.k,
        "max_candidates": settings.draft.max_candidates,
        "pinned": pinned,
        **(results[0] if len(settings.batch) == 1 else {}),
        "results": results,
    }
    print_report("rpc", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0


_ENGINE_STEPS = {"engine": "an engine's step", "engine_in_process": "an engine's step, in process"}


def _engine_figures(result: dict[str, Any], name: str) -> str:
    p50, p99, ratio = (result[f"{name}_{figure}"] for figure in ("p50_us", "p99_us", "echo_ratio"))
    return f"{p50:,.0f} / {p99:,.0f} µs; ×{ratio:.2f}"


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("graph", f"{figures['graph_tokens']:,} tokens"),
        ("a step", f"{figures['k']} tokens by {figures['strategy']}"),
        ("figures", "median / 99th percentile"),
    ]
    for result in figures["results"]:
        encrypted = ", encrypted" if result["tls"] else ""
        rows += [
            (f"{result['transport']}{encrypted}, {result['client']}, batch of {result['batch']}", ""),
            ("  StreamDraft", f"{result['p50_us']:,.0f} / {result['p99_us']:,.0f} µs"),
            (f"  gRPC echo, {result['request_bytes']:,} + {result['reply_bytes']:,} bytes; above over it",
             f"{result['echo_p50_us']:,.0f} / {result['echo_p99_us']:,.0f} µs; ×{result['echo_ratio']:.2f}"),
            ("  whole step of our client; over the echo",
             f"{result['client_p50_us']:,.0f} / {result['client_p99_us']:,.0f} µs; ×{result['client_echo_ratio']:.2f}"),
            *((f"  {label}; over the echo", _engine_figures(result, name)) for name, label in _ENGINE_STEPS.items()
              if f"{name}_p50_us" in result),
            ("  raw socket echo, not encrypted", f"{result['socket_p50_us']:,.0f} µs"),
            ("  a second, without pause: StreamDraft; client",
             f"{result['rpc_per_s']:,.0f}; {result['client_rpc_per_s']:,.0f}"),
            ("  processor time: StreamDraft; client; echo",
             f"{result['cpu_us_per_rpc']:,.0f}; {result['client_cpu_us_per_rpc']:,.0f}; "
             f"{result['echo_cpu_us_per_rpc']:,.0f} µs"),
        ]  # fmt: skip
    return rows
