"""``speculant bench fleet``: measures engines per sidecar, memory, and the effect of killing a sidecar.

Engines are simulated, each in a separate process; a simulated pass sleeps for as long as a GPU's pass takes. Sidecars
are real.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from speculant_graph.bench.fleet_engine import Order
from speculant_graph.bench.fleet_figures import engines_within
from speculant_graph.bench.fleet_runs import Ground, count_engines, kill_and_start, measure_memory
from speculant_graph.bench.report import COMMAS, begin, print_report
from speculant_graph.bench.texts import words_of_standard_library
from speculant_graph.budget import curve_of
from speculant_graph.config import ClientConfig
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.settings import ReportingSettings, load_settings

_PROMPT_TOKENS, _OUTPUT_TOKENS = 200, 200
_MOST_TRACES = 512
_BAR = 0.1
"""Maximum drafting time per pass, as a share of the pass time."""


class BenchFleetSettings(ReportingSettings):
    """Measure sidecars on this machine: engines per sidecar, memory, and the effect of killing a sidecar under load.

    Each sidecar gets its own core if there are enough; the engines share the other cores. The graph and the decoded
    texts come from different parts of Python's own sources, with words as tokens.
    """

    sidecars: Annotated[int, Field(ge=2, le=32)] = 2
    """Number of sidecars in the part of the bench that kills one of them. Engines per sidecar are measured with fewer
    sidecars if there are too few CPU cores for one each."""
    engines: Annotated[list[Annotated[int, Field(ge=1, le=256)]], COMMAS] = [1, 2, 4, 8]  # noqa: RUF012
    """Numbers of engines per sidecar to measure, separated by commas."""
    tenants: Annotated[int, Field(ge=0, le=10_000)] = 8
    """Number of tenants to which the engines assign sequences in turn; with 0, sequences have no tenant."""
    rows: Annotated[int, Field(ge=1, le=256)] = 8
    """Sequences per engine."""
    k: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum number of tokens drafted per sequence and pass."""
    tcp: bool = False
    """Connect to sidecars over TCP, as from another machine, instead of over Unix sockets."""
    curve: str = "gptoss-h100"
    """Times of the simulated forward passes, as for 'speculant bench engine-loop'."""
    time: Annotated[float, Field(ge=1.0)] = 10.0
    """Seconds to measure each number of engines, and also to measure before and after the kill and the restart of a
    sidecar."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchFleetSettings, "bench fleet", arguments)
    pass_s = float(curve_of(settings.curve, "--curve").seconds(settings.rows, settings.rows)[settings.rows])
    with tempfile.TemporaryDirectory(prefix="speculant-bench-") as name:
        ground = _prepare(settings, Path(name))
        memory = measure_memory(ground)
        results = count_engines(ground, settings.sidecars, settings.engines, settings.time, _BAR * pass_s)
        events, errors = kill_and_start(ground, settings.sidecars, settings.time)
    bar_ms = round(1e3 * _BAR * pass_s, 4)
    report = {
        "results": results,
        "events": events,
        "rows": settings.rows,
        "k": settings.k,
        "tenants": settings.tenants,
        "tcp": settings.tcp,
        "curve": settings.curve,
        "pass_ms": round(1e3 * pass_s, 4),
        "bar_ms": bar_ms,
        "engines_by_p50": engines_within(results, "draft_ms_p50", bar_ms),
        "engines_by_p99": engines_within(results, "draft_ms_p99", bar_ms),
        **memory,
        "errors": errors,
        "is_simulated": True,
    }
    print_report("fleet", report, arguments, as_json=settings.json_output)
    return 0


def _prepare(settings: BenchFleetSettings, folder: Path) -> Ground:
    begin("counting Python's own sources")
    token_ids, fingerprint = words_of_standard_library()
    size = _PROMPT_TOKENS + _OUTPUT_TOKENS
    num_traces = min(_MOST_TRACES, len(token_ids) // (4 * size))
    cut = len(token_ids) - num_traces * size
    build_from_token_ids(token_ids[:cut], fingerprint).save(folder / "graph.pkl")
    np.save(folder / "texts.npy", np.array(token_ids[cut:], np.int32).reshape(num_traces, size))
    order = Order(
        addresses="",
        tokenizer=(fingerprint.name, fingerprint.sha256, fingerprint.vocabulary_size),
        texts=str(folder / "texts.npy"),
        prompt_tokens=_PROMPT_TOKENS,
        first=0,
        tenants=[f"tenant {number}" for number in range(settings.tenants)],
        rows=settings.rows,
        k=settings.k,
        curve=settings.curve,
        deadline_ms=ClientConfig().deadline_ms,
    )
    return Ground(folder, folder / "graph.pkl", order, num_traces, settings.tcp)
