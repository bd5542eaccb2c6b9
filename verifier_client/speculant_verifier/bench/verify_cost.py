"""``speculant bench verify-cost``: the cost of a forward pass by batch size and tokens per row."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from speculant_graph.bench.report import COMMAS, begin, print_report
from speculant_graph.budget.pass_cost import MAX_POINT, CostCurve
from speculant_graph.config import VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.file_names import json_text
from speculant_graph.files import replace_bytes, workspace
from speculant_graph.settings import ReportingSettings, load_settings


class BenchVerifyCostSettings(ReportingSettings):
    """Measure the cost of verifying drafts: durations of forward passes over the last token and drafted nodes.

    Every figure is the shortest duration among repeated, interleaved passes. If --time does not suffice for all
    combinations of batch size and width, the largest passes are left out first.
    """

    batch: Annotated[list[Annotated[int, Field(ge=1, le=1_024)]], COMMAS] = [1, 4, 8]  # noqa: RUF012
    """Batch sizes to measure: rows per pass, separated by commas."""
    tokens: Annotated[list[Annotated[int, Field(ge=1, le=MAX_POINT)]], COMMAS] = [  # noqa: RUF012
        1, 2, 4, 8, 16, 32, 64,
    ]  # fmt: skip
    """Pass widths to measure: tokens per row, separated by commas; 1 is plain decoding."""
    context: Annotated[int, Field(ge=0, le=1 << 20)] = 200
    """Number of tokens that each row already has in the KV cache before a measured pass."""
    time: Annotated[float, Field(gt=0.0, le=3_600.0)] = 30.0
    """Maximum duration of the measurement, in seconds."""
    output: Path | None = None
    """JSON file for the cost curve of the first batch size, which 'speculant bench replay --cost' reads."""
    verifier: VerifierConfig = VerifierConfig()
    """The target model: a folder, a name on the hub, or random weights such as 'random:150M' plus a tokenizer's
    folder."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchVerifyCostSettings, "bench verify-cost", arguments)
    if settings.output is None:
        _measure(settings, arguments)
        return 0
    if settings.output.is_dir():
        raise ConfigError(f"--output: {settings.output} is a folder", fix="name a file")
    with workspace(settings.output):  # fails before the measurement if the file can't be written
        curve = _measure(settings, arguments)
        if len(curve["tokens"]) < 2:
            raise ConfigError(
                f"--time {settings.time:g} sufficed for one width only, and one point is no curve", fix="raise --time"
            )
        replace_bytes(settings.output, json_text(curve).encode() + b"\n")
    sys.stderr.write(f"{settings.output}: the curve of batch size {curve['batch']}\n")
    return 0


def _measure(settings: BenchVerifyCostSettings, arguments: Sequence[str]) -> dict[str, Any]:
    """Measure and print; return the cost curve of the first batch size."""
    from speculant_verifier.bench.workload import describe, load_target
    from speculant_verifier.speculation import measure_costs

    begin("loading the model")
    target = load_target(settings.verifier)
    if settings.context + max(settings.tokens) > target.max_length:
        raise ConfigError(f"'{target.name}' takes at most {target.max_length} tokens; lower --context or --tokens")
    begin("measuring forward passes")
    costs = measure_costs(target, settings.batch, settings.tokens, settings.context, settings.time)
    points = [point for point in costs.points if point.is_measured]
    curves = {
        batch: CostCurve(*zip(*((point.tokens, point.ms) for point in some), strict=True))
        for batch, some in groupby(points, attrgetter("batch"))  # sorted by batch size
    }
    figures: dict[str, Any] = {
        "points": [
            {
                "batch": point.batch,
                "nodes": point.tokens,
                "ms": round(point.ms, 4),
                "relative": round(curves[point.batch].relative(point.tokens), 4),
            }
            for point in points
        ],
        "context": costs.context,
        **describe(target),
    }
    left_out = len(settings.batch) * len({1, *settings.tokens}) - len(points)
    if left_out and target.offload is None:  # passes of a streamed model are mostly predicted
        sys.stderr.write(f"{left_out} combinations of batch size and width left out; raise --time\n")
    print_report("verify-cost", figures, arguments, as_json=settings.json_output)
    first = settings.batch[0]
    return {**asdict(curves[first]), "batch": first, **describe(target)}
