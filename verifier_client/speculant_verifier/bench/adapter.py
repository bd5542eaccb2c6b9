"""``speculant bench adapter``: a draft model beside n-grams and alone, and what it learns from recorded requests."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from speculant_graph.bench.progress import show_progress
from speculant_graph.config import DraftModelConfig
from speculant_graph.settings import CommandSettings, load_settings


class BenchAdapterSettings(CommandSettings):
    """Decode the demo model's prompts plainly, by n-grams, by the demo's draft model, and by both, interleaved.

    The prompts are of three kinds: text that the draft model knows, text that the graph holds, and text that neither
    does. The exit status is 1 if drafts changed a token.
    """

    limit: Annotated[int, Field(ge=1)] = 24
    """Prompts of each kind."""
    max_tokens: Annotated[int, Field(ge=8)] = 96
    """Most new tokens of each, at least 8."""
    batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Requests decoded together."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """Another draft model than the demo's."""
    loop: bool = False
    """Measure something else: collect, train, gate and swap, by the documented commands, and requests of a domain that
    the draft model never saw before and after."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if drafts changed a token."""
    settings = load_settings(BenchAdapterSettings, "bench adapter", arguments)
    from speculant_graph.bench.report import print_report
    from speculant_verifier.bench.adapter_loop import loop_report, measure_loop
    from speculant_verifier.bench.adapter_ways import measure_ways, ways_report
    from speculant_verifier.console import quiet_transformers
    from speculant_verifier.demo import DRAFT_MODEL_FOLDER

    quiet_transformers()
    if not settings.draft_model.name:
        draft_model = settings.draft_model.model_copy(update={"name": str(DRAFT_MODEL_FOLDER)})
        settings = settings.model_copy(update={"draft_model": draft_model})
    measure, report = (measure_loop, loop_report) if settings.loop else (measure_ways, ways_report)
    with show_progress() as progress, tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        figures = measure(settings, Path(folder), progress)
    rows, tables = report(figures)
    rows.append(("all tokens identical", "yes" if figures["identical"] else "NO"))
    print_report("adapter", rows, figures, arguments, as_json=settings.json_output, tables=tables)
    return int(not figures["identical"])
