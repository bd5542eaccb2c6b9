"""``speculant bench structured``: what agents ask for: answers of a form, calls that begin alike, predicted outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.config import VerifierConfig
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_verifier.bench.structured_runs import StructuredRuns

_RANDOM = "random:65M"
_REFERENCE_MS = 40.0
"""A pass of gpt-oss-20b on a small GPU, of which masks should be a small part."""


class BenchStructuredSettings(CommandSettings):
    """Decode records of a strict schema with and without what the form says, and a long conversation's second call.

    With recorded outputs also: drafts from a prediction, the code that the prompt holds, against drafts from the
    prompt alone. The exit status is 1 if an answer differs from the one without drafts, or is not of its form.
    """

    replay: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Recorded edits: JSON Lines with the texts 'prompt' and 'output'."""
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
    limit: Annotated[int, Field(ge=1)] = 40
    """Outputs of each file."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if a form or a draft changed an answer."""
    settings = load_settings(BenchStructuredSettings, "bench structured", arguments)
    from speculant_graph.bench.replay_progress import show_progress
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
        figures = _figures(settings, runs, progress.begin)
        target.close()
    _print(figures, arguments, as_json=settings.json_output)
    return int(not figures["identical"] or figures["valid_share"] < 1.0)


def _figures(settings: BenchStructuredSettings, runs: StructuredRuns, begin: Any) -> dict[str, Any]:
    begin("writing records")
    figures = runs.records(settings.records)
    begin("making masks")
    figures |= runs.masks()
    figures["mask_share"] = round(figures["mask_us_p50"] * settings.batch * settings.nodes / 1e3 / _REFERENCE_MS, 4)
    figures["asked_share"] = round(figures["asked_us_p50"] * settings.batch * settings.nodes / 1e3 / _REFERENCE_MS, 4)
    figures["host_share"] = round((figures["host_ms_form"] - figures["host_ms_free"]) / _REFERENCE_MS, 4)
    begin("reading a long conversation")
    figures |= runs.second_call(settings.conversation)
    if settings.replay:
        begin("decoding edits")
        figures |= runs.predictions(settings.replay, settings.limit)
    return figures


def _print(figures: dict[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    from speculant_graph.bench.report import print_report

    rows = [
        ("model, words", f"{figures['model']}, {figures['words']:,}"),
        ("records that are of their form", f"{figures['valid_share']:.0%}"),
        ("tokens a pass with what the form says", f"{figures['tokens_per_pass_with']:.2f}"),
        ("  with n-grams of the record alone", f"{figures['tokens_per_pass_without']:.2f}"),
        ("asking whether a form allows a token", f"{figures['asked_us_p50']:.1f} µs"),
        (
            f"  after {figures['mask_nodes']} nodes, of a pass of {_REFERENCE_MS:.0f} ms",
            f"{figures['asked_share']:.1%}",
        ),
        ("a mask, where it does not", f"{figures['mask_us_p50']:.0f} µs"),
        ("  after as many nodes", f"{figures['mask_share']:.1%}"),
        ("a step beside drafter and pass, with a form", f"{figures['host_ms_form']:.2f} ms, and nothing is allowed"),
        ("  without one", f"{figures['host_ms_free']:.2f} ms"),
        ("a pass here", f"{figures['pass_ms']:.1f} ms"),
        ("first token, first and second call", f"{figures['first_call_s']:.2f} s, {figures['second_call_s']:.3f} s"),
        ("  second call without a prefix cache", f"{figures['second_call_uncached_s']:.2f} s"),
        *(
            [
                ("edits, tokens a pass with a prediction", f"{figures['tokens_per_pass_prediction']:.3f}"),
                ("  from the prompt alone", f"{figures['tokens_per_pass_prompt']:.3f}"),
            ]
            if "tokens_per_pass_prompt" in figures
            else []
        ),
        ("all tokens identical", "yes" if figures["identical"] else "NO"),
    ]
    print_report("structured", rows, figures, arguments, as_json=as_json)
