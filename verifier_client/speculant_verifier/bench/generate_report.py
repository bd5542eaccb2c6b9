"""How ``speculant bench generate`` looks: a table of ways for each group, then the phases of a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from speculant_graph.bench.report import print_report
from speculant_graph.view.wording import counted

_NONE = "–"
_PLAIN_WIDTH = 120
_WAYS = (
    ("plain", "this engine, no drafts"),
    ("speculative", "this engine, drafts"),
    ("transformers", "transformers"),
    ("prompt_lookup", "transformers, prompt lookup"),
    ("assisted", "transformers, assistant"),
)


def print_generate(figures: Mapping[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    """Print the figures of all groups and of everything."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    groups = figures["workloads"]
    for group in groups:
        _print_group(console, group["workload"], group)
    if len(groups) > 1:
        _print_group(console, "all", figures)
    console.print("milliseconds of a step of the batch")
    console.print(_phases(figures))
    console.print()
    sys.stdout.flush()
    print_report("generate", _rows(figures), figures, arguments, as_json=as_json)


def _print_group(console: Console, name: str, group: Mapping[str, Any]) -> None:
    console.print(f"{name}: {counted(group['requests'], 'request')}, {counted(group['tokens'], 'token')}")
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("decoded by")
    for heading in ("tokens/s", "behind the\nfirst token", "faster\nthan plain", "tokens\nper step", "same\ntokens"):
        table.add_column(heading, justify="right")
    plain = group["plain_decode_tokens_per_s"]
    for way, label in _WAYS:
        if group[f"{way}_tokens_per_s"] is None:
            continue
        rate = group[f"{way}_decode_tokens_per_s"]
        per_step = group["mean_accepted_tokens"] if way == "speculative" else group.get(f"{way}_mean_accepted_tokens")
        table.add_row(
            label,
            f"{group[f'{way}_tokens_per_s']:.1f}",
            f"{rate:.1f}",
            f"×{rate / plain:.2f}" if plain else _NONE,
            _NONE if per_step is None else f"{per_step:.2f}",
            "yes" if group["identical_by_way"][way] else "no",
        )
    console.print(table)
    gaps = f"every {group['itl_ms_p50']:.0f} ms (p99 {group['itl_ms_p99']:.0f})"
    line = f"with drafts: first token {group['ttft_ms']:.0f} ms, then some {gaps}"
    line += f"; {group['acceptance_rate']:.0%} of {group['drafted_per_step']:.1f} drafted tokens per step accepted"
    if group.get("cost_efficiency") is not None:
        line += f"; cost efficiency {group['cost_efficiency']:.2f}"
        if group.get("cost_efficiency_in_run") is not None:
            line += f" ({group['cost_efficiency_in_run']:.2f} by the passes of these runs)"
    console.print(line + "\n", soft_wrap=True)


def _phases(figures: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("")
    for phase in figures["phase_ms"]:
        table.add_column(phase, justify="right")
    for label, key in (("no drafts", "plain_phase_ms"), ("drafts", "phase_ms")):
        table.add_row(label, *(f"{milliseconds:.2f}" for milliseconds in figures[key].values()))
    return table


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("model", f"{figures['model']}, {figures['parameters'] / 1e6:,.0f}M parameters, {figures['dtype']}"),
        ("device", f"{figures['device']}, {counted(figures['threads'], 'thread')}"),
        ("drafts", f"{figures['strategy']}, at most {counted(figures['k'], 'node')} a step, from {figures['drafter']}"),
        ("outputs", "recorded ones, forced upon all" if figures["replayed"] else "the model's own"),
        ("requests decoded together", str(figures["batch"])),
        ("all tokens identical", "yes" if figures["identical"] else "NO"),
    ]
    if figures["steps_without_drafter"]:
        rows.append(("steps without the drafter", f"{figures['steps_without_drafter']} of {figures['steps']}"))
    return rows
