"""``speculant bench faults``: what sidecar and client do when things go wrong."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.faults_server import Stage

_SectionName = Literal["stop", "kill", "reload", "sessions", "fuzz"]
_TEXTS, _TEXT_TOKENS = 8, 2_000


def _split(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


class BenchFaultsSettings(CommandSettings):
    """Stop, kill, reload, fill and fuzz a drafter in its own process, and measure what becomes of its clients.

    'stop': the drafter is stopped and goes on. 'kill': it is killed and started again. 'reload': its graph is
    replaced under requests. 'sessions': clients open sessions and leave. 'fuzz': mutated messages, malformed and slow
    connections. Each has limits, and the report says which it missed.
    """

    only: Annotated[list[_SectionName], Field(min_length=1), BeforeValidator(_split)] = [  # noqa: RUF012
        "stop", "kill", "reload", "sessions", "fuzz",
    ]  # fmt: skip
    """Sections, one or several."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 5
    """How often the drafter is stopped, and how often killed, under each of the two clients."""
    open_steps: Annotated[int, Field(ge=10, le=100_000)] = 500
    """Steps that are timed each time while it is stopped, at least 10."""
    requests: Annotated[int, Field(ge=10, le=1_000_000)] = 1_000
    """Requests while graphs are reloaded, and as many while none is; at least 10."""
    sessions: Annotated[int, Field(ge=10, le=1_000_000)] = 10_000
    """Sessions that are opened and dropped, at least 10."""
    session_memory_mb: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Memory that they may take together, in millions of bytes."""
    messages: Annotated[int, Field(ge=10, le=10_000_000)] = 10_000
    """Mutated messages, at least 10."""
    connections: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    """Malformed connections."""
    slow: Annotated[int, Field(ge=1, le=400)] = 200
    """Half-open connections that are held."""
    slow_s: Annotated[float, Field(ge=0, le=600)] = 8.0
    """How long they are held."""
    tokens: Annotated[int, Field(ge=10_000, le=1_500_000)] = 1_500_000
    """Words of Python's own sources that the graph is of, at least 10,000."""
    seed: int = 0
    """Seed of texts, messages and connections."""
    check: bool = False
    """End with status 1 if a limit is missed."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; return 1 if a limit is missed and that was asked for."""
    settings = load_settings(BenchFaultsSettings, "bench faults", arguments)
    from speculant_graph.bench.faults_report import missed, rows_of
    from speculant_graph.bench.progress import show_progress
    from speculant_graph.bench.report import print_report

    with tempfile.TemporaryDirectory(prefix="speculant-bench-") as temporary, show_progress() as progress:
        label = ""

        def tell(now: str, done: int, total: int) -> None:
            nonlocal label
            if now != label:
                label = now
                progress.begin(now)
            progress.show(now, done, total)

        tell("counting Python's own sources", 0, 0)
        stage = _make_stage(Path(temporary), settings, tell)
        sections = _sections(settings)
        measured: dict[str, Any] = {}
        for name in dict.fromkeys(settings.only):
            tell(f"{name}: starting a drafter", 0, 0)
            measured[name] = sections[name](stage)
    passed = {name: not missed(name, figures) for name, figures in measured.items()}
    figures = {
        "graph_tokens": stage.graph.metadata.num_tokens,
        **measured,
        "missed": {name: missed(name, each) for name, each in measured.items()},
        "passed": passed,
    }
    rows = [row for name, each in measured.items() for row in rows_of(name, each)]
    print_report("faults", rows, figures, arguments, as_json=settings.json_output)
    return int(settings.check and not all(passed.values()))


def _make_stage(folder: Path, settings: BenchFaultsSettings, tell: Callable[[str, int, int], None]) -> Stage:
    from speculant_graph.bench.faults_server import Stage
    from speculant_graph.bench.rpc_text import drawn_texts, words_of_standard_library
    from speculant_graph.graph.build.builder import build_from_token_ids

    token_ids, tokenizer = words_of_standard_library(settings.tokens)
    graph, path = build_from_token_ids(token_ids, tokenizer), folder / "graph.pkl"
    graph.save(path)
    return Stage(folder, graph, token_ids, path, drawn_texts(graph, _TEXTS, _TEXT_TOKENS, settings.seed), tell)


def _sections(settings: BenchFaultsSettings) -> dict[_SectionName, Callable[[Stage], dict[str, Any]]]:
    from speculant_graph.bench.faults_fuzz import measure_fuzz
    from speculant_graph.bench.faults_outage import measure_kill, measure_stop
    from speculant_graph.bench.faults_reload import measure_reload
    from speculant_graph.bench.faults_sessions import measure_sessions

    return {
        "stop": lambda stage: measure_stop(stage, settings.repeats, settings.open_steps),
        "kill": lambda stage: measure_kill(stage, settings.repeats),
        "reload": lambda stage: measure_reload(stage, settings.requests),
        "sessions": lambda stage: measure_sessions(stage, settings.sessions, settings.session_memory_mb),
        "fuzz": lambda stage: measure_fuzz(
            stage, settings.messages, settings.connections, settings.slow, settings.slow_s, settings.seed
        ),
    }
