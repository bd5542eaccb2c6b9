"""``speculant bench replay --online --layers``: measures the gain from learning and folding over time.

Every trace file is one tenant of a common store of learned text. A file's traces keep their order and are cut into
slices. The bench replays the first slice of every tenant, then the second slice of every tenant, and so on. The bench
replays all slices three times, each time with a fresh drafter. The first drafter does not learn. The second drafter has
a memory that forgets its oldest text. The third drafter has a memory of the same size, but folds its oldest text into
graphs. A trace starts only after all earlier folds have finished, which makes the figures reproducible.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from speculant_graph.bench.curves import Curve, Panel
from speculant_graph.bench.replaying import ReplayStep, replay
from speculant_graph.bench.report import begin
from speculant_graph.bench.texts import Workload
from speculant_graph.config import DraftConfig, FoldConfig
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint

VARIANTS = {
    "static": "without learning",
    "learning": "a memory that forgets",
    "folding": "older text folded into graphs",
}
"""Readable label of each variant, by the variant's name."""


@dataclass(slots=True)
class _Run:
    """Results of replaying all workloads in one variant."""

    slices: dict[tuple[str, int], list[ReplayStep]] = field(default_factory=dict)
    """Replayed steps of all traces, by workload and slice."""
    graph_tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Token counts of the tenant's graph files after each slice, oldest file first, by workload and slice."""
    folds: list[bool] = field(default_factory=list)
    """For each fold, whether it succeeded."""


def layer_figures(
    graphs: Sequence[NgramGraph],
    workloads: Sequence[Workload],
    tokenizer: Fingerprint,
    draft: DraftConfig,
    fold: FoldConfig,
    num_slices: int,
) -> dict[str, Any]:
    """Replay all workloads in the three variants; return the figures, ready for JSON.

    Args:
        graphs: the graphs that all tenants draft from.
        workloads: the workloads, each of which is a tenant.
        tokenizer: the tokenizer of the workloads' token ids.
        draft: draft settings; ``k`` is the number of nodes per step.
        fold: fold settings; ``young_tokens`` is also the size of the memory that forgets.
        num_slices: slices per workload.

    Raises:
        ConfigError: a workload has fewer traces than slices, or learning is off.
    """
    for workload in workloads:
        if len(workload.traces) < num_slices:
            raise ConfigError(
                f"workload '{workload.name}' has {len(workload.traces)} traces, fewer than --slices {num_slices}; "
                "lower --slices, or give more traces"
            )
    if not draft.max_learned_tokens:
        raise ConfigError("{field} is 0, so nothing is learned", fix="raise it", field="draft.max_learned_tokens")
    runs = {variant: _run(variant, graphs, workloads, tokenizer, draft, fold, num_slices) for variant in VARIANTS}
    folding = runs["folding"]
    results = []
    for key, steps in folding.slices.items():
        name, number = key
        files = folding.graph_tokens[key]
        results.append({
            "workload": name,
            "slice": number + 1,
            "output_tokens": sum(step.num_tokens for step in steps),
            **{variant: _tokens_a_step(runs[variant].slices[key]) for variant in VARIANTS},
            "graphs": len(files),
            "graph_tokens": sum(files),
        })  # fmt: skip
    return {
        "results": results,
        "workloads": [_summary(workload.name, runs, num_slices) for workload in workloads],
        "strategy": draft.strategy,
        "budget": draft.k,
        "young_tokens": fold.young_tokens,
        "folds": sum(folding.folds),
        "failed_folds": folding.folds.count(False),
        "layers": len(graphs),
        "online": True,
    }


def curves_of(figures: dict[str, Any]) -> list[Panel]:
    """Return the panels to draw: one for each workload, with a curve for each variant."""
    panels: dict[str, list[Curve]] = {}
    for each in figures["results"]:
        curves = panels.setdefault(each["workload"], [Curve(label, []) for label in VARIANTS.values()])
        for curve, variant in zip(curves, VARIANTS, strict=True):
            curve.values.append(each[variant])
    return [Panel(name, curves) for name, curves in panels.items()]


def _run(
    variant: str,
    graphs: Sequence[NgramGraph],
    workloads: Sequence[Workload],
    tokenizer: Fingerprint,
    draft: DraftConfig,
    fold: FoldConfig,
    num_slices: int,
) -> _Run:
    run = _Run()
    with ExitStack() as stack:
        store = LearnedStore(fold.young_tokens)
        if variant == "folding":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="speculant-"))
            store = LearnedStore(
                draft.max_learned_tokens,
                Path(folder, "learned"),
                tokenizer,
                fold,
                on_fold=lambda _seconds, is_done: run.folds.append(is_done),
            )
        stack.enter_context(store)
        drafter = SessionDrafter(graphs, draft, learned=store)
        tell = begin(f"{VARIANTS[variant]}: {', '.join(workload.name for workload in workloads)}")
        for number in range(num_slices):
            for workload in workloads:
                low, high = (len(workload.traces) * edge // num_slices for edge in (number, number + 1))
                key = workload.name, number
                replayed = replay(
                    drafter,
                    workload.traces[low:high],
                    draft.k,
                    tenant=workload.name,
                    learn=variant != "static",
                    tell=lambda _done, _all: store.wait_for_folds(),
                )
                run.slices[key] = [step for steps in replayed for step in steps]
                run.graph_tokens[key] = [graph.metadata.num_tokens for graph in store.graphs(workload.name)]
            tell(number + 1, num_slices)
    return run


def _summary(name: str, runs: dict[str, _Run], num_slices: int) -> dict[str, Any]:
    """Return the figures of a workload over all slices."""
    found: dict[str, Any] = {"workload": name}
    for variant, run in runs.items():
        steps = [step for number in range(num_slices) for step in run.slices[name, number]]
        found[variant] = _tokens_a_step(steps)
        found[f"{variant}_draft_us_p50"] = round(float(np.percentile([step.draft_ns for step in steps], 50)) / 1e3, 2)
    found["folding_over_static"] = round(found["folding"] / found["static"], 4)
    found["folding_over_learning"] = round(found["folding"] / found["learning"], 4)
    return found


def _tokens_a_step(steps: Sequence[ReplayStep]) -> float:
    return round(sum(step.num_tokens for step in steps) / len(steps), 4)
