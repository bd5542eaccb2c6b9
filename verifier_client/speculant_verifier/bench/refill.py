"""What refilling free rows brings: requests of unequal lengths, against batches that wait for their slowest."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from speculant_graph.bench.report import print_report
from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.types import Drafter
from speculant_verifier.bench.cases import Case, CaseGroup
from speculant_verifier.bench.own_decoding import OwnDecoding
from speculant_verifier.bench.tally import Decoded
from speculant_verifier.model import TargetModel

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress

_SHORTEST = 8
_ROUNDS = 2


def mixed_lengths(cases: Sequence[Case], number: int, seed: int) -> list[Case]:
    """Repeat requests and cut each to a length between 8 tokens and its own, short ones as likely as long ones.

    Lengths are drawn evenly on a logarithmic scale, as answers of chats are: many short ones, a few long.
    """
    generator = random.Random(seed)
    mixed = []
    for case in islice(cycle(cases), number):
        shortest = min(_SHORTEST, case.max_tokens)
        length = round(math.exp(generator.uniform(math.log(shortest), math.log(case.max_tokens))))
        mixed.append(replace(case, max_tokens=length, forced=None if case.forced is None else case.forced[:length]))
    return mixed


def measure_refill(
    target: TargetModel,
    drafter: Drafter,
    groups: Sequence[CaseGroup],
    config: GenerationConfig,
    batch: int,
    num_requests: int,
    draft: DraftConfig,
    progress: BenchProgress,
) -> dict[str, Any]:
    """Decode the requests both ways, in turns, and return the figures, ready for JSON.

    ``steps_efficiency`` is the share of row steps that served a request: steps of all requests over passes times rows.
    """
    cases = mixed_lengths([case for group in groups for case in group.cases], num_requests, config.seed)

    decoding = OwnDecoding(target, drafter, draft, batch)

    def decode(some: Sequence[Case]) -> Decoded:
        return decoding.decode(some, config)

    ways: dict[str, Callable[[], list[Decoded]]] = {
        "refilled": lambda: [decode(cases)],
        "fixed": lambda: [decode(cases[start : start + batch]) for start in range(0, len(cases), batch)],
    }
    decode(cases[:batch])  # warms up
    results: dict[str, list[list[Decoded]]] = {name: [] for name in ways}
    tell = progress.teller("decoding")
    for number in range(_ROUNDS):
        order = list(ways) if number % 2 else list(ways)[::-1]
        for done, name in enumerate(order):
            tell(number * len(ways) + done, _ROUNDS * len(ways))
            results[name].append(ways[name]())
    tell(1, 1)
    figures: dict[str, Any] = {"requests": len(cases), "k": draft.k}
    for name, rounds in results.items():
        figures[name] = _figures(rounds, batch)
    texts = {name: [row.token_ids for run in rounds[0] for row in run.rows] for name, rounds in results.items()}
    figures["identical"] = texts["refilled"] == texts["fixed"]
    figures["steps_ratio"] = round(figures["fixed"]["passes"] / figures["refilled"]["passes"], 4)
    figures["speedup"] = round(figures["refilled"]["tokens_per_s"] / figures["fixed"]["tokens_per_s"], 4)
    return figures


def _figures(rounds: Sequence[Sequence[Decoded]], batch: int) -> dict[str, Any]:
    """Return the figures of one way; the time is that of its fastest round."""
    runs = rounds[0]
    num_tokens = sum(len(row.token_ids) for run in runs for row in run.rows)
    num_steps = sum(row.num_steps for run in runs for row in run.rows)
    num_passes = sum(run.num_passes for run in runs)
    seconds = min(sum(run.total_s for run in runs) for runs in rounds)
    return {
        "tokens": num_tokens,
        "steps": num_steps,
        "passes": num_passes,
        "steps_efficiency": round(num_steps / (num_passes * batch), 4),
        "tokens_per_s": round(num_tokens / seconds, 3),
    }


def print_refill(figures: Mapping[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    """Print both ways."""
    refilled, fixed = figures["refilled"], figures["fixed"]
    rows = [
        ("model", f"{figures['model']}, {figures['dtype']} on {figures['device']}"),
        ("requests, rows, tokens", f"{figures['requests']}, {figures['batch']}, {refilled['tokens']:,}"),
        ("passes, refilled / fixed batches", f"{refilled['passes']:,} / {fixed['passes']:,}"),
        (
            "row steps that served a request, refilled / fixed",
            f"{refilled['steps_efficiency']:.1%} / {fixed['steps_efficiency']:.1%}",
        ),
        ("fewer passes", f"×{figures['steps_ratio']:.2f}"),
        ("tokens/s, refilled / fixed", f"{refilled['tokens_per_s']:.1f} / {fixed['tokens_per_s']:.1f}"),
        ("sooner", f"×{figures['speedup']:.2f}"),
        ("all tokens identical", "yes" if figures["identical"] else "NO"),
    ]
    print_report("generate", rows, figures, arguments, as_json=as_json)
