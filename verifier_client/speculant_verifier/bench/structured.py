"""``speculant bench structured``: what agents ask for: answers of a form, and calls that begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from speculant_graph.bench.progress import show_progress
from speculant_graph.bench.report import print_report
from speculant_graph.config import VerifierConfig
from speculant_graph.settings import CommandSettings, load_settings

_RANDOM = "random:65M"


class BenchStructuredSettings(CommandSettings):
    """Decode records of a strict schema with and without what the form forces, and a long conversation's second call.

    The exit status is 1 if an answer differs from the one without drafts, or is not of its form.
    """

    verifier: VerifierConfig = VerifierConfig()
    """Model; without one, random weights for the named tokenizer."""
    records: Annotated[int, Field(ge=1)] = 16
    """Records that are written."""
    batch: Annotated[int, Field(ge=1)] = 8
    """Rows."""
    nodes: Annotated[int, Field(ge=1)] = 8
    """Most drafted tokens of a row."""
    conversation: Annotated[int, Field(ge=64)] = 4000
    """Tokens of the long conversation, at least 64."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if a form or a draft changed an answer."""
    settings = load_settings(BenchStructuredSettings, "bench structured", arguments)
    from speculant_verifier.bench.models import load_target
    from speculant_verifier.bench.structured_runs import StructuredRuns
    from speculant_verifier.console import quiet_transformers

    quiet_transformers()
    with show_progress() as progress:
        progress.begin("loading the model")
        verifier = settings.verifier
        if "model_name" not in verifier.model_fields_set:
            verifier = verifier.model_copy(update={"model_name": _RANDOM})
        target = load_target(verifier)
        runs = StructuredRuns(target, settings.batch, settings.nodes)
        progress.begin("writing records")
        figures = runs.records(settings.records)
        progress.begin("making masks")
        figures |= runs.masks()
        progress.begin("reading a long conversation")
        figures |= runs.second_call(settings.conversation)
        target.close()
    rows = [
        ("model, words", f"{figures['model']}, {figures['words']:,}"),
        ("records that are of their form", f"{figures['valid_share']:.0%}"),
        ("tokens a pass with what the form forces", f"{figures['tokens_per_pass_with']:.2f}"),
        ("  with n-grams of the record alone", f"{figures['tokens_per_pass_without']:.2f}"),
        ("asking whether a form allows a token", f"{figures['asked_us_p50']:.1f} µs"),
        ("a mask, where it does not", f"{figures['mask_us_p50']:.0f} µs"),
        ("a pass here", f"{figures['pass_ms']:.1f} ms"),
        ("first token, first and second call", f"{figures['first_call_s']:.2f} s, {figures['second_call_s']:.3f} s"),
        ("  second call without a prefix cache", f"{figures['second_call_uncached_s']:.2f} s"),
        ("all tokens identical", "yes" if figures["identical"] else "NO"),
    ]
    print_report("structured", rows, figures, arguments, as_json=settings.json_output)
    return int(not figures["identical"] or figures["valid_share"] < 1.0)
