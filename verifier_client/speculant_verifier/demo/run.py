"""Runs the demo and prints its output: coloured text, a table and, for programs, one JSON object."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from speculant_graph.bench.processes import OwnDrafter
from speculant_graph.bench.report import alternate
from speculant_graph.cli.graphs import show_progress
from speculant_graph.client import NullDrafter
from speculant_graph.config import ClientConfig, DraftConfig, DraftModelConfig, VerifierConfig
from speculant_graph.file_names import json_text
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.log import log_to_stderr
from speculant_graph.machine import describe_machine
from speculant_verifier.cli.console import legend, print_event
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo import DRAFT_MODEL_FOLDER, MODEL_FOLDER
from speculant_verifier.demo.corpus import PROMPTS, standard_library_files
from speculant_verifier.model import TargetModel
from speculant_verifier.model.progress import quiet_transformers
from speculant_verifier.results import GenerationResult, StepEvent

if TYPE_CHECKING:
    from speculant_verifier.cli.demo import DemoSettings

_COLUMNS = ("prompt", "tokens", "plain/s", "spec./s", "faster", "per step", "accepted", "RPC p50", "p99", "same")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Results of all runs of one prompt."""

    shown: list[GenerationResult]
    """Results of the unmeasured runs whose text is printed: first the run without drafts, then the run with drafts."""
    plain: list[GenerationResult]
    speculative: list[GenerationResult]
    round_trips_s: list[float]
    """Durations of the RPC round trips in the measured runs with drafts, in seconds."""


def _figures(outcomes: Sequence[_Outcome]) -> dict[str, Any]:
    """Return the JSON output's figures of one or more prompts; speeds come from each prompt's median duration."""
    plain_s, speculative_s = (
        sum(median(result.times.total_s for result in results) for results in variants)
        for variants in ([each.plain for each in outcomes], [each.speculative for each in outcomes])
    )
    num_tokens = sum(len(each.plain[0].token_ids) for each in outcomes)
    last = [each.speculative[-1] for each in outcomes]
    num_steps = sum(result.num_steps for result in last)
    num_drafted = sum(result.num_drafted for result in last)
    trips_us = [1e6 * time_s for each in outcomes for time_s in each.round_trips_s] or [0.0]
    p50, p99 = np.percentile(trips_us, (50, 99)).round(1).tolist()
    return {
        "identical": all(
            result.token_ids == each.plain[0].token_ids
            for each in outcomes
            for result in (*each.shown, *each.plain, *each.speculative)
        ),
        "speedup": round(plain_s / speculative_s, 3),
        "plain_tokens_per_s": round(num_tokens / plain_s, 2),
        "speculative_tokens_per_s": round(num_tokens / speculative_s, 2),
        "mean_accepted_tokens": round(num_tokens / num_steps, 3),
        "acceptance_rate": round(sum(result.num_accepted for result in last) / num_drafted, 4) if num_drafted else 0.0,
        "draft_us_p50": p50,
        "draft_us_p99": p99,
        "tokens": num_tokens,
        "steps": num_steps,
        "steps_without_drafter": sum(
            result.num_steps_without_drafter for each in outcomes for result in each.speculative
        ),
    }


def run_demo(settings: DemoSettings, arguments: Sequence[str]) -> int:
    """Run the demo and print the comparison; return 0 if all texts are identical, else 1."""
    console = Console(highlight=False)
    quiet_transformers()
    log_to_stderr("WARNING")
    outcomes: list[_Outcome] = []
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        graph = Path(folder, "standard_library.pkl")
        _build(graph, console)
        with closing(OwnDrafter(graph, f"unix://{folder}/drafter.sock")) as drafter:
            console.print(f"sidecar: process {drafter.process.pid} serves it at {drafter.address}", soft_wrap=True)
            # One thread: such small matrices gain nothing from more threads, and waiting threads would compete with the
            # sidecar for cores.
            target = TargetModel.load(VerifierConfig(model_name=str(MODEL_FOLDER), device="cpu", num_threads=1))
            console.print(f"model:   {sum(p.numel() for p in target.model.parameters()):,} parameters, {target.device}")
            plain = SpeculativeDecoder(drafter=NullDrafter(), target=target, draft_config=DraftConfig(k=0))
            speculative = SpeculativeDecoder(
                # Otherwise the measured run could draft from the learned text of the first run.
                client_config=ClientConfig(address=drafter.address, deadline_ms=100.0, learn=False),
                target=target,
                draft_config=settings.draft,
                draft_model=DraftModelConfig(name=str(DRAFT_MODEL_FOLDER) if settings.draft_model else ""),
            )
            with closing(speculative):
                for index, prompt in enumerate(PROMPTS, start=1):
                    console.rule(f"prompt {index} of {len(PROMPTS)}", align="left")
                    console.print(Text(prompt, "bold"))
                    shown = [  # also warms up
                        _show_stream(console, name, decoder.stream(prompt, settings.generation))
                        for name, decoder in (("plain", plain), ("speculative", speculative))
                    ]
                    outcomes.append(_measure(prompt, plain, speculative, settings, shown))
                if speculative.adapters is not None:
                    state = speculative.adapters.state
                    right = "" if state.acceptance is None else f", right about {state.acceptance:.0%} of the tokens"
                    console.print(f"draft model: {state.num_passes} passes{right}", soft_wrap=True)
    return _report(console, outcomes, arguments, as_json=settings.json_output)


def _build(path: Path, console: Console) -> None:
    files = standard_library_files()
    with show_progress() as progress:
        graph = GraphBuilder(tokenizer_name=str(MODEL_FOLDER)).build(files, path, progress=progress)
    console.print(
        f"graph:   {graph.metadata.num_tokens:,} tokens of {len(files)} standard library files, "
        f"{sum(graph.metadata.transitions_per_order):,} transitions, {path.stat().st_size / 1e6:.0f} MB",
        soft_wrap=True,
    )


def _show_stream(console: Console, name: str, events: Iterator[StepEvent]) -> GenerationResult:
    """Print text as it is decoded; return the result."""
    colors = [legend()] if name != "plain" and console.color_system else []
    console.print(Text(f"[{name}]", "dim"), *colors, sep="  ")
    result = None
    for event in events:
        if name == "plain":
            console.print(Text(event.text, "dim"), end="", soft_wrap=True)
        else:
            print_event(console, event)
        result = event.result
    console.print()
    assert result is not None
    return result


def _measure(
    prompt: str,
    plain: SpeculativeDecoder,
    speculative: SpeculativeDecoder,
    settings: DemoSettings,
    shown: list[GenerationResult],
) -> _Outcome:
    """Decode a prompt alternately without and with drafts; return the results."""
    round_trips_s: list[float] = []

    def with_drafts(_: int) -> GenerationResult:
        before = speculative.drafter.statistics.steps
        result = speculative.generate(prompt, settings.generation)
        statistics = speculative.drafter.statistics
        steps = statistics.steps - before
        round_trips_s.extend(statistics.round_trip_s[-steps:] if steps else ())
        return result

    variants = {"plain": lambda _: plain.generate(prompt, settings.generation), "speculative": with_drafts}
    results = alternate(variants, settings.rounds)
    return _Outcome(shown, results["plain"], results["speculative"], round_trips_s)


def _report(console: Console, outcomes: Sequence[_Outcome], arguments: Sequence[str], *, as_json: bool) -> int:
    """Print the table, and the JSON object if requested; return the demo's exit status."""
    prompts, everything = [_figures([each]) for each in outcomes], _figures(outcomes)
    console.rule("tokens per second, tokens per forward pass, accepted share of drafted tokens", align="left")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for index, figures in enumerate([*prompts, everything], start=1):
        table.add_row(
            "all" if figures is everything else f"{index}",
            f"{figures['tokens']}",
            f"{figures['plain_tokens_per_s']:.0f}",
            f"{figures['speculative_tokens_per_s']:.0f}",
            f"×{figures['speedup']:.2f}",
            f"{figures['mean_accepted_tokens']:.2f}",
            f"{figures['acceptance_rate']:.0%}",
            f"{figures['draft_us_p50']:.0f} µs",
            f"{figures['draft_us_p99']:.0f} µs",
            "yes" if figures["identical"] else "NO",
            style="bold" if figures is everything else "",
        )
    console.print(table)
    if everything["identical"]:
        console.print("every text is identical to plain decoding")
    else:
        console.print("[bold red]a speculative text differs from plain decoding: this is a defect[/]")
    if as_json:
        report = everything | {
            "prompts": [{"prompt": prompt} | each for prompt, each in zip(PROMPTS, prompts, strict=True)],
            "machine": describe_machine(),
            "command": ["speculant", "demo", *arguments],
        }
        sys.stdout.write(json_text(report) + "\n")
    return 0 if everything["identical"] else 1
