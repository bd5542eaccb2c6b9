"""``speculant bench verify-cost``: what a forward pass costs, by the rows of the batch and the tokens of each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from speculant_graph.config import VerifierConfig
from speculant_graph.draft.cost import MAX_POINT
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_verifier.speculation import CostTable

_MOST_ROWS = 1_024


class BenchVerifyCostSettings(CommandSettings):
    """Measure what verifying drafts costs: forward passes over the last token and drafted nodes.

    Every figure is the smallest of repeated passes, which take turns. What does not fit into --time is left out, from
    the largest on.
    """

    batch: str = "1,4,8"
    """Rows of a pass, separated by commas."""
    tokens: str = "1,2,4,8,16,32,64"
    """Tokens of each row, separated by commas; 1 is plain decoding."""
    context: Annotated[int, Field(ge=0, le=1 << 20)] = 200
    """Tokens that every row has in the cache."""
    time: Annotated[float, Field(gt=0.0, le=3_600.0)] = 30.0
    """Longest time of the measurement, in seconds."""
    plot: Path | None = None
    """Draw the curves into this file, .png or .svg."""
    output: Path | None = None
    """Write the curve of the first batch to this JSON file, as 'speculant bench replay --cost' reads it."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    verifier: VerifierConfig = VerifierConfig()
    """The model: a folder, a name on the hub, or random weights such as 'random:150M' with the tokenizer's folder."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchVerifyCostSettings, "bench verify-cost", arguments)
    batches = parse_numbers("batch", settings.batch, _MOST_ROWS)
    tokens = parse_numbers("tokens", settings.tokens, MAX_POINT)
    if settings.plot is not None:
        from speculant_graph.bench.replay_options import check_plot

        check_plot(settings.plot)
    from speculant_graph.bench.replay_progress import show_progress
    from speculant_graph.graph.export import replacing
    from speculant_verifier.bench.models import load_target
    from speculant_verifier.console import quiet_transformers
    from speculant_verifier.speculation import measure_costs

    quiet_transformers()
    with show_progress() as progress:
        progress.begin("loading the model")
        target = load_target(settings.verifier)
        if settings.context + max(tokens) > target.max_length:
            raise ConfigError(f"'{target.name}' takes at most {target.max_length} tokens; lower --context or --tokens")
        table = measure_costs(
            target, batches, tokens, settings.context, settings.time, progress.teller("measuring forward passes")
        )
    figures = cost_figures(table) | describe(target)
    _report(settings, figures, arguments)
    if settings.output is not None:
        curve = table.curve(batches[0])
        content = {"tokens": curve.tokens, "relative": curve.relative, "batch": batches[0]} | describe(target)
        with replacing(settings.output) as temporary:
            import json

            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    if settings.plot is not None:
        from speculant_verifier.bench.verify_cost_plot import plot_costs

        with replacing(settings.plot) as temporary:
            plot_costs(figures, temporary, settings.plot.suffix.lower().removeprefix("."))
    return 0


def parse_numbers(flag: str, text: str, largest: int) -> list[int]:
    """Return the numbers of a list with commas, each once, in its order.

    Raises:
        ConfigError: one is no whole number, or too small or large.
    """
    numbers: dict[int, None] = {}
    for item in text.split(","):
        number = item.strip()
        is_whole = number.isascii() and number.isdigit() and len(number) <= len(str(largest))
        if not is_whole or not 1 <= int(number) <= largest:
            raise ConfigError(
                f"--{flag}: '{number}' is no whole number from 1 to {largest:,}; write numbers such as 1,8"
            )
        numbers[int(number)] = None
    return list(numbers)


def cost_figures(table: CostTable) -> dict[str, Any]:
    """Return the measured points, ready for JSON."""
    points = [
        {
            "batch": point.batch,
            "nodes": point.tokens,
            "ms": round(point.ms, 4),
            "relative": round(table.relative(point.batch, point.tokens), 4),
        }
        for point in table.points
    ]
    return {"points": points, "context": table.context}


def describe(target: Any) -> dict[str, Any]:
    """Return what was measured on which device, ready for JSON."""
    import torch

    device: torch.device = target.device
    return {
        "model": target.name,
        "parameters": sum(parameter.numel() for parameter in target.model.parameters()),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "attention": target.model.config._attn_implementation,
    }


def _report(settings: BenchVerifyCostSettings, figures: dict[str, Any], arguments: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from speculant_graph.bench.report import print_report
    from speculant_graph.view.wording import counted

    points = {(point["batch"], point["nodes"]): point for point in figures["points"]}
    batches = sorted({batch for batch, _ in points})
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("tokens\na row", justify="right")
    for batch in batches:
        table.add_column(f"batch {batch}\nms", justify="right")
        table.add_column("\nof 1", justify="right")
    for nodes in sorted({nodes for _, nodes in points}):
        cells = []
        for batch in batches:
            point = points.get((batch, nodes))
            cells += ["–", "–"] if point is None else [f"{point['ms']:.2f}", f"×{point['relative']:.2f}"]
        table.add_row(str(nodes), *cells)
    console = Console(highlight=False, markup=False)
    console.print(table)
    rows = [
        ("model", f"{figures['model']}, {figures['parameters'] / 1e6:,.0f}M parameters, {figures['dtype']}"),
        ("device", f"{figures['device']}, {counted(figures['threads'], 'thread')}"),
        ("tokens in the cache", f"{figures['context']:,} a row"),
    ]
    asked = parse_numbers("batch", settings.batch, _MOST_ROWS), parse_numbers("tokens", settings.tokens, MAX_POINT)
    if left_out := len(asked[0]) * len({1, *asked[1]}) - len(points):
        rows.append(("left out, as --time is short", f"{left_out} points"))
    print_report("verify-cost", rows, figures, arguments, as_json=settings.json_output)
