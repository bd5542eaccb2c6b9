"""``speculant bench generate``: decoding plainly, with drafts, and with what transformers brings itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.progress import show_progress
from speculant_graph.bench.report import ReportTable, print_report
from speculant_graph.config import ClientConfig, DraftConfig, DraftModelConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings
from speculant_graph.view.formatting import counted
from speculant_verifier.demo import MODEL_FOLDER

_MAX_TOKENS = 128
_LIMIT = 10
_NONE = "–"
_WAYS = (
    ("plain", "this engine, no drafts"),
    ("speculative", "this engine, drafts"),
    ("transformers", "transformers"),
    ("prompt_lookup", "transformers, prompt lookup"),
    ("assisted", "transformers, assistant"),
)


class BenchGenerateSettings(CommandSettings):
    """Decode the same requests with this engine and with transformers, plainly and with drafts, interleaved.

    Transformers' generate runs plainly, with prompt lookup and with an assistant model, on the same model object.
    With recorded outputs the passes are real, but every way is made to write the record. The exit status is 1 if
    drafts changed a token in float32.
    """

    prompts: Path | None = None
    """Prompts: one a line, or JSON Lines with the field 'prompt'."""
    replay: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Recorded outputs instead of prompts: JSON Lines with the texts 'prompt' and 'output'. Each file is a workload."""
    demo: bool = False
    """Use the demo's model and prompts and, without --graph-path, its graph of the standard library."""
    graph_path: Path | None = None
    """Draft in this process from this graph."""
    assistant: str | None = None
    """Draft model of transformers' assisted generation: a folder."""
    batch: Annotated[int, Field(ge=1, le=256)] = 1
    """Requests decoded together. Transformers' own speculation takes one only and is left out otherwise."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Most requests of each file, the first ones; 10 of recorded outputs unless said otherwise."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    verifier: VerifierConfig = VerifierConfig()
    """The model: a folder, a name on the hub, or random weights such as 'random:150M' with the tokenizer's folder."""
    draft: DraftConfig = DraftConfig()
    """How to draft."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """A small language model that drafts, too."""
    generation: GenerationConfig = GenerationConfig()
    """How tokens are chosen; at most 128 unless said otherwise."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecar, if there is one. It keeps what it learned before."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if drafts changed a token where they must not."""
    settings = _completed(load_settings(BenchGenerateSettings, "bench generate", arguments))
    if sum((settings.prompts is not None, bool(settings.replay), settings.demo)) != 1:
        raise ConfigError("name what to decode: one of --prompts FILE, --replay TRACES and --demo")
    if settings.assistant is not None and settings.batch > 1:
        raise ConfigError("assisted generation takes one request at a time; leave --assistant or --batch out")
    from speculant_verifier.bench.generate_runs import measure_generate

    with show_progress() as progress:
        figures = measure_generate(settings, progress)
    groups = figures["workloads"]
    tables = [_table(group["workload"], group) for group in groups]
    if len(groups) > 1:
        tables.append(_table("all", figures))
    phases = [
        (label, *(f"{milliseconds:.2f}" for milliseconds in figures[key].values()))
        for label, key in (("no drafts", "plain_phase_ms"), ("drafts", "phase_ms"))
    ]
    tables.append(ReportTable(("", *figures["phase_ms"]), phases, "milliseconds of a step of the batch"))
    rows = _rows(figures)
    print_report("generate", rows, figures, arguments, as_json=settings.json_output, tables=tables)
    return int(not figures["identical"] and figures["dtype"] == "float32")


def _completed(settings: BenchGenerateSettings) -> BenchGenerateSettings:
    """Put the bench's own defaults where nothing was set."""
    generation, verifier = settings.generation, settings.verifier
    if "max_tokens" not in generation.model_fields_set:
        generation = generation.model_copy(update={"max_tokens": _MAX_TOKENS})
    if settings.demo:
        verifier = verifier.model_copy(update={"model_name": str(MODEL_FOLDER), "tokenizer_name": None})
    limit = settings.limit or (_LIMIT if settings.replay else None)
    return settings.model_copy(update={"generation": generation, "verifier": verifier, "limit": limit})


def _table(name: str, group: Mapping[str, Any]) -> ReportTable:
    headings = (
        "decoded by", "tokens/s", "behind the\nfirst token", "faster\nthan plain", "tokens\nper step", "same\ntokens",
    )  # fmt: skip
    rows = []
    plain = group["plain_decode_tokens_per_s"]
    for way, label in _WAYS:
        if group[f"{way}_tokens_per_s"] is None:
            continue
        rate = group[f"{way}_decode_tokens_per_s"]
        per_step = group["mean_accepted_tokens"] if way == "speculative" else group.get(f"{way}_mean_accepted_tokens")
        rows.append((
            label,
            f"{group[f'{way}_tokens_per_s']:.1f}",
            f"{rate:.1f}",
            f"×{rate / plain:.2f}" if plain else _NONE,
            _NONE if per_step is None else f"{per_step:.2f}",
            "yes" if group["identical_by_way"][way] else "no",
        ))  # fmt: skip
    return ReportTable(headings, rows, f"{name}: {counted(group['requests'], 'request')}, "
                       f"{counted(group['tokens'], 'token')}")  # fmt: skip


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("model", f"{figures['model']}, {figures['parameters'] / 1e6:,.0f}M parameters, {figures['dtype']}"),
        ("device", f"{figures['device']}, {counted(figures['threads'], 'thread')}"),
        ("drafts", f"{figures['strategy']}, at most {counted(figures['k'], 'node')} a step, from {figures['drafter']}"),
        ("outputs", "recorded ones, forced upon all" if figures["replayed"] else "the model's own"),
        ("requests decoded together", str(figures["batch"])),
        ("drafted tokens a step, accepted", f"{figures['drafted_per_step']:.1f}, {figures['acceptance_rate']:.0%}"),
        ("first token with drafts", f"{figures['ttft_ms']:.0f} ms"),
        ("then some every, p50, p99", f"{figures['itl_ms_p50']:.0f} ms, {figures['itl_ms_p99']:.0f} ms"),
        ("steps without the drafter", f"{figures['steps_without_drafter']} of {figures['steps']}"),
        ("all tokens identical", "yes" if figures["identical"] else "NO"),
    ]
