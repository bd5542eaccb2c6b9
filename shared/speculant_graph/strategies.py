"""Table of drafting strategies, with one record per strategy. This module imports no other module of the project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

NgramStrategyName = Literal["greedy", "sampling", "adaptive", "tree", "specexec"]
"""Strategies that draft from n-grams. The native core implements these strategies, so any process can run them, and
sidecars serve them."""

StrategyName = Literal[NgramStrategyName, "nasd", "model"]
"""All strategies (see :class:`~speculant_graph.config.DraftConfig`); the last two run only in a verifier."""

RunnerName = Literal["most-frequent", "drawn", "best-first", "verifier", "draft-model"]
"""Implementation of a strategy: a method of the core, a drafter in the verifier's process, or the draft model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Properties of a drafting strategy."""

    summary: str
    """Short description of the strategy's drafts for ``--help`` and the documentation, without a full stop."""
    evidence: str
    """Sources that the strategy drafts from, as shown in the documentation and in messages."""
    runs_by: RunnerName
    """Implementation of the strategy, which also determines the process in which it runs."""
    number: int = 0
    """Number in the protocol's enum ``Strategy``; 0 for strategies that run only in a verifier."""
    reads: tuple[str, ...] = ()
    """Settings of ``[draft]`` that this strategy reads, in addition to the settings that every strategy reads."""
    makes_trees: bool = False
    """Whether the strategy drafts trees under every verification rule."""
    chain: StrategyName | None = None
    """Strategy that replaces this one in engines that can't verify trees, if there is one."""
    is_calibrated: bool = False
    """Whether the drafts have path probabilities that estimate acceptance; otherwise they have no probabilities."""
    has_proposals: bool = False
    """Whether the strategy samples tokens from distributions q and returns q. The strategy samples sibling nodes only
    for verification rules that use siblings."""
    needs_graph: bool = False
    """Whether the strategy drafts only from the graph."""
    fills_budget: bool = False
    """Whether the strategy fills its node budget, however improbable the nodes are."""
    takes_model: bool = False
    """Whether a draft model may draft with this strategy."""


STRATEGIES: dict[StrategyName, Capabilities] = {
    "tree": Capabilities(
        summary="the most probable paths, best first; most tokens per step", evidence="all sources",
        runs_by="best-first", number=4, reads=("sources", "max_depth", "max_branches", "max_learned_tokens"),
        makes_trees=True, chain="adaptive", is_calibrated=True, takes_model=True,
    ),
    "adaptive": Capabilities(
        summary="a chain of the most probable tokens, by calibrated probability of acceptance", evidence="all sources",
        runs_by="best-first", number=3, reads=("sources", "max_depth", "max_learned_tokens"), is_calibrated=True,
    ),
    "specexec": Capabilities(
        summary="the same paths as tree, regardless of verification cost", evidence="all sources",
        runs_by="best-first", number=5, reads=("sources", "max_depth", "max_branches", "max_learned_tokens"),
        makes_trees=True, is_calibrated=True, fills_budget=True, takes_model=True,
    ),
    "sampling": Capabilities(
        summary="tokens sampled from the distribution after the longest known context, returned as q; a tree "
        "for the rules tree-wor and tree-iid, else a chain", evidence="the graph",
        runs_by="drawn", number=2, reads=("max_candidates", "temperature", "max_depth", "max_branches"),
        has_proposals=True, needs_graph=True,
    ),
    "greedy": Capabilities(
        summary="a chain of the most frequent successors, at the order of the longest known context",
        evidence="the graph",
        runs_by="most-frequent", number=1, needs_graph=True,
    ),
    "nasd": Capabilities(
        summary="only in a verifier: a chain from n-grams stored during decoding",
        evidence="the tenant's sequences",
        runs_by="verifier", reads=("max_learned_tokens", "n", "filler_top_k", "stop_if_unknown"),
    ),
    "model": Capabilities(
        summary="only in a verifier: a tree of its draft model's most probable tokens", evidence="the draft model",
        runs_by="draft-model", reads=("max_depth", "max_branches"),
        makes_trees=True, is_calibrated=True, takes_model=True,
    ),
}  # fmt: skip
"""Strategies by name. Error messages suggest strategies in this order: the strategy with the most tokens per step in
``speculant bench replay`` comes first."""

NGRAM_STRATEGIES: tuple[NgramStrategyName, ...] = get_args(NgramStrategyName)
"""The n-gram strategies in the order of ``NgramStrategyName``. ``--help`` shows the strategies in this order; a new
strategy comes last."""

READ_BY: dict[str, tuple[StrategyName, ...]] = {
    setting: tuple(name for name in get_args(StrategyName) if setting in STRATEGIES[name].reads)
    for setting in dict.fromkeys(setting for each in STRATEGIES.values() for setting in each.reads)
}
"""For each setting of ``[draft]`` that only some strategies read: the strategies that read it."""


def described(names: tuple[StrategyName, ...]) -> str:
    """Return a text for ``--help`` that describes the given strategies."""
    return " ".join(f"'{name}': {STRATEGIES[name].summary}." for name in names)
