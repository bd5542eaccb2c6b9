"""``speculant bench offload``: measures a model larger than memory, with drafts, without drafts and in accelerate.

Weights are random, because the duration of a forward pass does not depend on their values. The model is forced to
output recorded text, whose tokens are renumbered so that a small vocabulary suffices. A draft model, if given, has real
weights. It drafts the recorded outputs as SpecExec trees, in its own vocabulary. Streaming, accelerate and the model in
memory run in separate processes, so that the memory of each can be measured.
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
    """Decode recorded outputs with a model larger than a memory budget; compare with the model entirely in memory.

    Outputs are decoded without drafts, and with draft trees of at most --nodes nodes. For comparison, passes without
    drafts run with accelerate's disk offloading under the same memory budget. If a draft model is given, the strategy
    specexec drafts the trees, with 64 nodes per pass of the draft model. The exit status is 1 if offloading changed a
    logit.
    """

    replay: CliVariadicArg[list[TypedPath]]
    """Recorded outputs: JSON Lines files, each line with the texts 'prompt' and 'output'. Each file of recorded outputs
    forms one workload, with its own figures."""
    tokenizer: str
    """Folder of the tokenizer for the recorded outputs."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """Draft model, which must use the tokenizer of the recorded outputs. By default, drafts come from n-grams of the
    recorded outputs."""
    family: Literal["llama", "gpt-oss"] = "llama"
    """Architecture of the model with random weights."""
    size: ByteSize = ByteSize(3_000_000_000)
    """Total size of the model's random weights, stored in bfloat16."""
    ram_budget: ByteSize = ByteSize(1_000_000_000)
    """Memory limit of a process whose weights are offloaded."""
    nodes: Annotated[list[Annotated[int, Field(ge=1, le=2_048)]], COMMAS] = [16, 64, 256, 1024]  # noqa: RUF012
    """Tree sizes to measure: maximum numbers of nodes per tree, separated by commas."""
    depth: Annotated[int, Field(ge=1, le=255)] = 16
    """Maximum depth of a draft model's trees."""
    limit: Annotated[int, Field(ge=1)] = 4
    """Number of outputs to decode from each file."""
    max_tokens: Annotated[int, Field(ge=8)] = 200
    """Maximum number of tokens of each output, at least 8."""


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures; return 1 if offloading changed a logit."""
    settings = load_settings(BenchOffloadSettings, "bench offload", arguments)
    from speculant_verifier.bench import offload_runs as runs

    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
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
