"""``speculant bench offload``: a model that memory does not hold, plainly, with drafts, and by accelerate's offloading.

Weights are random: what a pass takes does not depend on them. What is decoded are recorded outputs, forced upon the
model; their tokens are numbered anew, so that a small vocabulary suffices. Every way has a process of its own, so that
its memory can be told.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ByteSize, Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.report import COMMAS, BenchSettings, ReportTable, print_report, show_progress
from speculant_graph.errors import SpeculantError
from speculant_graph.settings import TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_verifier.bench.offload_runs import OffloadPlan


class BenchOffloadSettings(BenchSettings):
    """Decode recorded outputs with a model that a budget of memory does not hold, and with the same one in memory.

    Plainly and with trees of so many nodes, and plainly with accelerate's disk offloading under the same budget. The
    exit status is 1 if a logit differs.
    """

    replay: CliVariadicArg[list[TypedPath]]
    """Recorded outputs: JSON Lines with the texts 'prompt' and 'output'. Each file is a workload."""
    tokenizer: str
    """Tokenizer of the recorded outputs: a folder."""
    family: Literal["llama", "gpt-oss"] = "llama"
    """Of the random weights."""
    size: ByteSize = ByteSize(3_000_000_000)
    """Of the random weights, in bfloat16."""
    ram_budget: ByteSize = ByteSize(1_000_000_000)
    """Memory that the process may take."""
    nodes: Annotated[list[int], COMMAS] = [16, 64, 256, 1024]  # noqa: RUF012 - every instance gets its own copy
    """Most nodes of trees, separated by commas."""
    limit: Annotated[int, Field(ge=1)] = 4
    """Outputs of each file."""
    max_tokens: Annotated[int, Field(ge=8)] = 200
    """Most tokens of each, at least 8."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if offloading changed a logit."""
    settings = load_settings(BenchOffloadSettings, "bench offload", arguments)
    from speculant_verifier.bench import offload_runs as runs

    with show_progress() as progress, tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        progress.begin("writing random weights")
        plan = runs.OffloadPlan(
            Path(folder), settings.tokenizer, settings.family, int(settings.size), int(settings.ram_budget),
            tuple(settings.nodes), runs.numbered_anew(settings),
        )  # fmt: skip
        _in_process(runs.write_weights, plan)
        figures: dict[str, Any] = {"budget_bytes": int(settings.ram_budget), "family": settings.family}
        for way, label in (
            (runs.streamed, "decoding with a part of the weights in memory: some minutes"),
            (runs.accelerate, "decoding with accelerate's offloading"),
            (runs.resident, "decoding with all weights in memory"),
        ):
            progress.begin(label)
            figures |= _in_process(way, plan)
    passes = []
    for name, label in (("pass", "one token"), ("wide_pass", "widest tree")):
        times = [figures[f"{way}_{name}_ms"] for way in ("stream", "resident", "read")]
        figures[f"{name}_over_bound"] = times[0] / max(times[1:])
        passes.append((label, *(f"{ms:.0f}" for ms in times), f"×{figures[f'{name}_over_bound']:.2f}"))
    results = [
        (
            each["workload"],
            str(each["nodes"] or "none"),
            f"{each['tokens_per_pass']:.2f}",
            f"{each['tokens_per_s']:.2f}",
            f"×{each['speedup']:.2f}",
        )
        for each in figures["results"]
    ]
    tables = [
        ReportTable(
            ("a pass over", "streamed\nms", "computing\nms", "reading\nms", "streamed over\nthe larger"), passes
        ),
        ReportTable(("workload", "most\nnodes", "tokens\na pass", "tokens/s", "faster than\nwithout"), results),
    ]
    rows = [
        *figures["plan"].items(),
        ("most memory without file pages", f"{figures['peak_bytes'] / 1e9:.2f} GB"),
        ("disk", f"{figures['bytes_per_s'] / 1e9:.2f} GB/s, of which decoding used {figures['bandwidth_share']:.0%}"),
        ("a pass by accelerate's disk offloading, one token", f"{figures['accelerate_pass_ms']:.0f} ms"),
        ("logits identical to those in memory", "yes" if figures["identical"] else "NO"),
    ]
    print_report("offload", rows, figures, arguments, as_json=settings.json_output, tables=tables)
    return int(not figures["identical"])


def _in_process(way: Callable[[OffloadPlan], dict[str, Any]], plan: OffloadPlan) -> dict[str, Any]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(way, plan).result()
        except BrokenProcessPool as error:
            raise SpeculantError(f"the process that was {way.__name__} was killed; lower --size") from error
