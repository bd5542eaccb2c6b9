"""Which strategies read which settings of drafting; loads nothing."""

from __future__ import annotations

from speculant_graph.types import StrategyName

READ_BY: dict[str, tuple[StrategyName, ...]] = {
    "max_candidates": ("sampling",),
    "temperature": ("sampling",),
    "sources": ("adaptive", "tree", "specexec"),
    "max_depth": ("sampling", "adaptive", "tree", "specexec", "model"),
    "max_branches": ("sampling", "tree", "specexec", "model"),
    "max_learned_tokens": ("adaptive", "tree", "specexec", "nasd"),
    "n": ("nasd",),
    "filler_top_k": ("nasd",),
    "stop_if_unknown": ("nasd",),
}
"""Settings of ``[draft]`` that not every strategy reads, and the strategies that do."""
