"""``speculant bench offload``: compares drafts, no drafts and accelerate for a model that exceeds memory.

Weights are random, because the time of a pass does not depend on them. The model is forced to output recorded text,
whose tokens are renumbered so that a small vocabulary suffices. A draft model has real weights: it drafts the recorded
outputs in its own vocabulary, with SpecExec's trees. Every variant runs in its own process, so that its memory can be
measured.
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

from speculant_graph.bench.report import COMMAS, begin, print_report
from speculant_graph.config import DraftModelConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.settings import ReportingSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_verifier.bench.offload_runs import OffloadPlan


class BenchOffloadSettings(ReportingSettings):
    """Decode recorded outputs with a model larger than a memory budget, and with the same model entirely in memory.

    It decodes plainly, with trees of at most --nodes nodes, and plainly with accelerate's disk offloading under the
    same budget. With a draft model, the strategy specexec drafts the trees, with 64 nodes per draft pass. The exit
    status is 1 if a logit differs.
    """

    replay: CliVariadicArg[list[TypedPath]]
    """Recorded outputs: JSON Lines with the texts 'prompt' and 'output'. Each file is a workload."""
    tokenizer: str
    """Tokenizer of the recorded outputs: a folder."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """Draft model with the tokenizer of the recorded outputs. By default, drafts come from n-grams of the outputs."""
    family: Literal["llama", "gpt-oss"] = "llama"
    """Architecture of the random weights."""
    size: ByteSize = ByteSize(3_000_000_000)
    """Size of the random weights, in bfloat16."""
    ram_budget: ByteSize = ByteSize(1_000_000_000)
    """Memory limit of the process."""
    nodes: Annotated[list[int], COMMAS] = [16, 64, 256, 1024]  # noqa: RUF012 - every instance gets its own copy
    """Maximum numbers of nodes per tree, separated by commas."""
    depth: Annotated[int, Field(ge=1, le=255)] = 16
    """Maximum depth of a draft model's trees."""
    limit: Annotated[int, Field(ge=1)] = 4
    """Number of outputs to decode from each file."""
    max_tokens: Annotated[int, Field(ge=8)] = 200
    """Maximum number of tokens of each output, at least 8."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; return 1 if offloading changed a logit."""
    settings = load_settings(BenchOffloadSettings, "bench offload", arguments)
    from speculant_verifier.bench import offload_runs as runs

    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        begin("writing random weights")
        plan = runs.OffloadPlan(
            Path(folder), settings.tokenizer, settings.draft_model.name, settings.family, int(settings.size),
            int(settings.ram_budget), tuple(settings.nodes), settings.depth, *runs.workloads_of(settings),
        )  # fmt: skip
        _in_process(runs.write_weights, plan)
        figures: dict[str, Any] = {"budget_bytes": int(settings.ram_budget), "family": settings.family}
        for variant, label in (
            (runs.streamed, "decoding with a part of the weights in memory: some minutes"),
            (runs.accelerate, "decoding with accelerate's offloading"),
            (runs.resident, "decoding with all weights in memory"),
        ):
            begin(label)
            figures |= _in_process(variant, plan)
    for name in ("pass", "wide_pass"):
        larger = max(figures[f"resident_{name}_ms"], figures[f"read_{name}_ms"])
        figures[f"{name}_over_bound"] = figures[f"stream_{name}_ms"] / larger
    print_report("offload", figures, arguments, as_json=settings.json_output)
    return int(not figures["identical"])


def _in_process(variant: Callable[[OffloadPlan], dict[str, Any]], plan: OffloadPlan) -> dict[str, Any]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(variant, plan).result()
        except BrokenProcessPool as error:
            raise SpeculantError(f"the process that was {variant.__name__} was killed; lower --size") from error
