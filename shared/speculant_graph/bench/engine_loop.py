"""``speculant bench engine-loop``: measures drafting between the passes of a simulated fast engine.

The simulated engine replays recorded outputs, and requests drafts through the same code as the engine adapters. During
a pass, the process sleeps for the time given by the cost curve. The sleep lets the CPU's caches go cold, as in an
engine that waits for a GPU's forward pass. Drafts are verified by comparing them with the recorded output. Every
speedup is computed twice: without and with the time spent on drafting.
"""

from __future__ import annotations

import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from loguru import logger
from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.report import COMMAS, Progress, begin, print_report, show_build
from speculant_graph.bench.simulated_engine import passes
from speculant_graph.bench.texts import Trace, Workload, read_workloads
from speculant_graph.budget import CostCurve, curve_of
from speculant_graph.config import ClientConfig, GraphConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.factory import load_engine_settings, open_sessions
from speculant_graph.errors import ConfigError, DrafterUnavailableError, SpeculantError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.settings import GraphPaths, ReportingSettings, TypedPath, load_settings
from speculant_graph.types import Fingerprint

_FEW_PASSES = 200
"""Number of passes below which the bench warns that an engine's first passes dominate the figures."""
_COLUMNS = (
    "workload", "rows", "passes", "tokens_per_pass", "draft_ms_p50", "draft_ms_p99", "pass_ms_plain", "speedup_free",
    "speedup_paid", "neural_share", "steps_without_drafter",
)  # fmt: skip


class BenchEngineLoopSettings(ReportingSettings):
    """Replay recorded outputs on a simulated engine with a GPU's pass times, and measure the drafting time.

    The bench uses no GPU: its forward passes only sleep. For each number of rows, the engine decodes the traces once,
    with that many traces in a batch. The column 'speedup free' is the ratio of tokens per second with drafts to plain
    decoding, as if drafting took no time. The column 'speedup paid' also counts the drafting time.
    """

    traces: CliVariadicArg[list[TypedPath]]
    """Recorded outputs: JSON Lines files with the text fields 'prompt' and 'output' in every line. Each trace file is
    one workload. The workload's name is the field 'workload' of the first line, or else the file's name."""
    corpus: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Corpus files, folders and patterns to count into one n-gram graph, as for 'speculant build'. Without a corpus, a
    graph file or a sidecar, drafts come only from the decoded text."""
    graph_path: CliVariadicArg[GraphPaths] = []  # noqa: RUF012
    """Graph file to draft from instead of counting a corpus; up to four files serve as layers."""
    curve: str = "gptoss-h100"
    """Pass times: 'gptoss-h100', 'gptoss-spark', 'dense-8b-h100', a shape ('flat', 'dense', 'cpu-moe', 'moe'; 10 ms
    for one token), or a file such as {"tokens": [1, 8, 64], "ms": [3.0, 4.7, 6.4]}, whose 'tokens' must begin at 1."""
    rows: Annotated[list[Annotated[int, Field(ge=1, le=1_024)]], COMMAS] = [1, 8, 32]  # noqa: RUF012
    """Batch sizes to measure (numbers of sequences decoded together), separated by commas. By default, batch sizes
    larger than a file's number of traces are skipped."""
    k: Annotated[int, Field(ge=1, le=2_048)] = 8
    """Maximum number of tokens drafted per sequence and pass, from 1 to 2,048."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Number of traces to replay from the start of each file; by default all."""
    time: Annotated[float, Field(gt=0.0)] = 20.0
    """Maximum time to measure each workload at each batch size, in seconds."""
    graph: GraphConfig = GraphConfig()
    """Graph settings: the tokenizer, the n-gram orders, and how the corpus is read."""
    client: ClientConfig = ClientConfig()
    """Sidecar to request drafts from, instead of drafting in the bench's own process. For each workload and batch size,
    the bench uses a new tenant of the sidecar, which learns only from that run's traces. With --client.tenant, all runs
    use the named tenant, which may already have learned the traces."""


def run(arguments: Sequence[str]) -> int:
    """Replay and print."""
    # By itself --graph is the section with the tokenizer.
    typed = [re.sub(r"^--graph(?==|$)", "--graph-path", argument) for argument in arguments]
    settings = load_settings(BenchEngineLoopSettings, "bench engine-loop", typed)
    curve = curve_of(settings.curve, "--curve")
    if not settings.traces:
        raise ConfigError("--traces names no file; name JSON Lines with the texts 'prompt' and 'output'")
    sources = {"--corpus": settings.corpus, "--graph-path": settings.graph_path, "--drafter": settings.client.address}
    if len(given := [name for name, value in sources.items() if value]) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other; give one of them")
    begin("reading the tokenizer")
    config = settings.graph
    token = config.hf_token.get_secret_value() if config.hf_token else None
    tokenizer = CorpusTokenizer.load(config.tokenizer_name, token, special_tokens="parse")
    begin("tokenising the traces")
    workloads = [_of_more_tokens(each) for each in read_workloads(settings.traces, tokenizer, settings.limit)]
    is_chosen = "rows" in settings.model_fields_set
    for workload in workloads:
        _require_enough(workload, settings.rows if is_chosen else settings.rows[:1])
    _require_times(curve, workloads, settings)
    results: list[dict[str, Any]] = []
    try:
        with _drafting(settings) as source:
            for workload in workloads:
                for num_rows in (each for each in settings.rows if each <= len(workload.traces)):
                    figures = _measure(settings, source, workload, num_rows, curve, tokenizer.fingerprint)
                    results.append({"workload": workload.name, "rows": num_rows, **figures})
    except (SpeculantError, KeyboardInterrupt):
        if results:  # earlier results took minutes
            _print(settings, results, arguments)
        raise
    _print(settings, results, arguments)
    return 0


def _print(settings: BenchEngineLoopSettings, results: list[dict[str, Any]], arguments: Sequence[str]) -> None:
    report = {"results": results, "curve": settings.curve, "k": settings.k, "is_simulated": True}
    print_report("engine-loop", report, arguments, as_json=settings.json_output, columns={"results": _COLUMNS})


def _measure(
    settings: BenchEngineLoopSettings,
    source: dict[str, Any],
    workload: Workload,
    num_rows: int,
    curve: CostCurve,
    fingerprint: Fingerprint,
) -> dict[str, Any]:
    """Decode a workload with ``num_rows`` rows; return the figures, ready for JSON.

    Raises:
        DrafterUnavailableError: the sidecar does not draft.
    """
    tell = begin(f"{workload.name}, {num_rows} together")
    if settings.client.address:
        source = {"client": {"tenant": f"bench-{uuid.uuid4().hex}", **source["client"]}}
    sessions = open_sessions(
        load_engine_settings(source, "bench engine-loop"),
        fingerprint,
        most_drafted=settings.k,
        vocabulary_size=fingerprint.vocabulary_size,
    )
    try:
        _require_drafts(sessions, settings)
        loop = run_loop(sessions, workload.traces, num_rows, settings.k, curve, settings.time, tell)
        num_without = sessions.counts.failed_steps
        if settings.client.address:
            num_without += sessions.drafter_statistics.failed_steps
    finally:
        sessions.close()
    if len(loop.pass_s) < _FEW_PASSES:
        logger.warning(
            "{}, {} together: only {} passes, and an engine's first ones, which try out what drafts cost, weigh much; "
            "record more or longer outputs", workload.name, num_rows, len(loop.pass_s),
        )  # fmt: skip
    if num_without:
        logger.warning("{} of {} steps had no drafter; the figures include them", num_without, len(loop.pass_s))
    share = round(sessions.counts.neural_steps / max(1, sessions.counts.drafted_steps), 4)
    return {**loop.figures(num_rows, curve), "neural_share": share, "steps_without_drafter": num_without}


def _require_times(curve: CostCurve, workloads: Sequence[Workload], settings: BenchEngineLoopSettings) -> None:
    """Check that a single pass fits into the measuring time of a workload.

    Raises:
        ConfigError: according to the curve, a pass takes longer than the measuring time.
    """
    most = max(len(workload.traces) for workload in workloads)
    for num_rows in (each for each in settings.rows if each <= most):
        pass_s = float(curve.seconds(num_rows, num_rows)[num_rows])
        if pass_s > settings.time:
            raise ConfigError(
                f"by --curve {settings.curve} a pass over {num_rows} tokens takes {pass_s:,.3g} s, longer than --time "
                f"{settings.time:g}",
                fix="give its times in milliseconds, or raise --time",
                field="curve",
            )


@contextmanager
def _drafting(settings: BenchEngineLoopSettings) -> Iterator[dict[str, Any]]:
    """Build a temporary graph if a corpus is given, and yield the engine's draft settings."""
    if settings.client.address:
        yield {"client": settings.client.model_dump(exclude_unset=True)}
        return
    if settings.graph_path:
        yield {"graph_path": settings.graph_path}
        return
    if not settings.corpus:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        path = Path(folder, "graph.pkl")
        GraphBuilder(**settings.graph.model_dump()).build(settings.corpus, path, progress=show_build())
        yield {"graph_path": path}


def _require_drafts(sessions: EngineSessions, settings: BenchEngineLoopSettings) -> None:
    """Check that the sidecar is able to draft.

    Raises:
        DrafterUnavailableError: the sidecar can't draft; the message contains its reason and the fix.
    """
    if sessions.drafter_failure:
        raise DrafterUnavailableError(
            f"no drafts from the sidecar at {settings.client.address}: {sessions.drafter_failure}"
        )


def _of_more_tokens(workload: Workload) -> Workload:
    """Leave out traces with an output of one token, because the prefill pass already generates this token."""
    return replace(workload, traces=tuple(trace for trace in workload.traces if len(trace.output) > 1))


def _require_enough(workload: Workload, rows: Sequence[int]) -> None:
    if len(workload.traces) < max(rows):
        raise ConfigError(
            f"workload '{workload.name}' has {len(workload.traces)} traces of more than one token, fewer than --rows "
            f"{max(rows)}; lower --rows, or give more traces"
        )


@dataclass(slots=True)
class LoopTimes:
    """Times and tokens of a simulated run."""

    draft_s: list[float] = field(default_factory=list)
    """Seconds of drafting before each pass."""
    pass_s: list[float] = field(default_factory=list)
    """Seconds of each simulated pass, according to the cost curve."""
    num_tokens: int = 0
    """Number of tokens that all passes together generated."""

    def figures(self, num_rows: int, curve: CostCurve) -> dict[str, Any]:
        """Return the figures of the run as a JSON-ready dict."""
        plain_s = float(curve.seconds(num_rows, num_rows)[num_rows])
        plain_rate = num_rows / plain_s
        free_s, draft_s = sum(self.pass_s), sum(self.draft_s)
        return {
            "passes": len(self.pass_s),
            "tokens_per_pass": round(self.num_tokens / len(self.pass_s) / num_rows, 4),
            "draft_ms_p50": round(1e3 * float(np.percentile(self.draft_s, 50)), 4),
            "draft_ms_p99": round(1e3 * float(np.percentile(self.draft_s, 99)), 4),
            "pass_ms_plain": round(1e3 * plain_s, 4),
            "speedup_free": round(self.num_tokens / free_s / plain_rate, 4),
            "speedup_paid": round(self.num_tokens / (free_s + draft_s) / plain_rate, 4),
        }


def run_loop(
    sessions: EngineSessions,
    traces: Sequence[Trace],
    num_rows: int,
    k: int,
    curve: CostCurve,
    most_s: float,
    tell: Progress = lambda done, total: None,
) -> LoopTimes:
    """Decode each trace at most once until time is up; learned text thus always comes from other requests.

    Args:
        sessions: source of drafts.
        traces: traces to decode, at least one per row.
        num_rows: sequences per pass.
        k: maximum number of drafted tokens per row.
        curve: cost curve, which gives the time of passes.
        most_s: seconds after which no pass starts.
        tell: called with the number of started traces.
    """
    times, end_s = LoopTimes(), time.perf_counter() + most_s
    waiting = (_told(trace, number, len(traces), tell) for number, trace in enumerate(traces, start=1))
    for each in passes(sessions, waiting, num_rows, k, curve):
        times.draft_s.append(each.draft_s)
        times.pass_s.append(each.pass_s)
        times.num_tokens += each.num_tokens
        if time.perf_counter() >= end_s:
            break
    return times


def _told(trace: Trace, number: int, total: int, tell: Progress) -> Trace:
    tell(number, total)
    return trace
