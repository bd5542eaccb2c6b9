"""The measurements of ``speculant bench draft``: everything in turns between other work, then each strategy alone."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from speculant_graph.bench.draft_plain import GraphTreeDrafter
from speculant_graph.bench.draft_sessions import (
    Pace,
    SteppedDrafter,
    Turns,
    cut_sessions,
    longest_session,
    num_portions,
    take_turns,
)
from speculant_graph.bench.latency import _OtherWork
from speculant_graph.bench.progress import BenchProgress
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learned import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import StrategyName

STRATEGIES: tuple[StrategyName, ...] = ("tree", "adaptive", "greedy", "sampling")
"""What is measured by itself."""

_BATCH_EVERY = 8
_FEWEST_SESSIONS = 32
_LEARNED_PIECE = 500


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What is measured."""

    budget: int
    """Most nodes of a draft."""
    batch: int
    """Sequences of a call for many."""
    learned: int
    """Tokens that earlier sequences accepted."""
    drafts: int
    """Timed drafts of each kind."""
    seed: int
    """Of the choice of sessions, and of strategies that draw."""
    config: DraftConfig
    """How strategies draft."""

    @property
    def num_sessions(self) -> int:
        """Sessions that each drafter is at."""
        return max(_FEWEST_SESSIONS, self.batch)

    @property
    def num_portions(self) -> int:
        """Portions of each session."""
        return num_portions(self.drafts, (self.pace(), self.batch_pace), self.num_sessions)

    @property
    def num_held_tokens(self) -> int:
        """Tokens of text that are needed at least."""
        return self.learned + longest_session(self.num_portions)

    @property
    def batch_pace(self) -> Pace:
        """Of the drafter that drafts for many at once."""
        return Pace(self.budget, self.seed, self.batch, _BATCH_EVERY)

    def pace(self, every: int = 1) -> Pace:
        """Return the pace of a drafter that drafts for one at once."""
        return Pace(self.budget, self.seed, every=every)

    def config_of(self, strategy: StrategyName) -> DraftConfig:
        """Return the configuration with a strategy."""
        return DraftConfig.model_validate(self.config.model_dump() | {"strategy": strategy, "k": self.budget})

    def require_room(self) -> None:
        """Refuse to learn more than is kept.

        Raises:
            ConfigError: it is more.
        """
        if self.learned + -(-self.learned // _LEARNED_PIECE) > self.config.max_learned_tokens:
            raise ConfigError(
                f"of --learned {self.learned} tokens, --max-learned-tokens {self.config.max_learned_tokens} keeps "
                "fewer with what separates them; lower the one or raise the other"
            )


def measure_drafts(plan: DraftPlan, graph: NgramGraph, held: UInt32Array, progress: BenchProgress) -> dict[str, Any]:
    """Measure and return the figures.

    Args:
        plan: what.
        graph: what is drafted from.
        held: text that the graph did not count, of at least ``plan.num_held_tokens``; its first tokens are learned.
        progress: told how far it is, between the rounds.
    """
    progress.begin("preparing the drafters")
    tree = plan.config_of("tree")
    drafters: dict[str, tuple[SteppedDrafter, Pace]] = {
        name: (SessionDrafter(graph, plan.config_of(name)), plan.pace()) for name in STRATEGIES
    }
    store = _store(tree, held[: plan.learned])
    drafters["learned"] = SessionDrafter(graph, tree, learned=store), plan.pace()
    drafters["batch"] = SessionDrafter(graph, tree), plan.batch_pace
    drafters["graph"] = GraphTreeDrafter(graph, tree), plan.pace()
    random = np.random.default_rng(plan.seed)
    # Each has sessions of its own: in the same ones, one would leave the next what it needs in the caches.
    sessions = {
        name: cut_sessions(held[plan.learned :], plan.num_sessions, plan.num_portions, random) for name in drafters
    }
    turns = {name: Turns(*of, sessions[name]) for name, of in drafters.items()}
    tight = {
        name: Turns(SessionDrafter(graph, plan.config_of(name)), plan.pace(), sessions[name]) for name in STRATEGIES
    }
    # What lives on must not slow the other work's garbage collections down.
    gc.collect()
    gc.freeze()
    try:
        tell = progress.teller("drafting between other work")
        take_turns(list(turns.values()), plan.num_sessions, plan.drafts, _OtherWork().do, tell)
        for name, alone in tight.items():
            tell = progress.teller(f"drafting by itself: {name}")
            take_turns([alone], plan.num_sessions, plan.drafts, lambda: None, tell)
    finally:
        gc.unfreeze()
    return {
        **_figures(plan, turns, tight),
        "tokens": graph.metadata.num_tokens,
        "nodes": sum(graph.metadata.nodes_per_level),
    }


def _store(config: DraftConfig, token_ids: UInt32Array) -> LearnedStore:
    store = LearnedStore(config.max_learned_tokens)
    for start in range(0, token_ids.size, _LEARNED_PIECE):
        store.memory("").core.add(token_ids[start : start + _LEARNED_PIECE].astype(np.int64))
    return store


def _figures(plan: DraftPlan, turns: Mapping[str, Turns], tight: Mapping[StrategyName, Turns]) -> dict[str, Any]:
    tree_us, batch_us = turns["tree"].draft_us(50), turns["batch"].draft_us(50)
    graph_us = turns["graph"].draft_us(50)
    return {
        "budget": plan.budget,
        "drafts": plan.drafts,
        "tree_p50_us": tree_us,
        "tree_p99_us": turns["tree"].draft_us(99),
        "tight_tree_p50_us": tight["tree"].draft_us(50),
        "tight_tree_p99_us": tight["tree"].draft_us(99),
        "tree_nodes": turns["tree"].nodes_per_draft,
        "batch": plan.batch,
        "batch_p50_us": batch_us,
        "batch_ratio": round(batch_us / (plan.batch * tree_us), 3),
        "learn_us_per_token": turns["tree"].accept_us_per_token,
        "accept_p50_us": turns["tree"].accept_us(50),
        "tight_learn_us_per_token": tight["tree"].accept_us_per_token,
        "tight_accept_p50_us": tight["tree"].accept_us(50),
        "prompt_ns_per_token": turns["tree"].prompt_ns_per_token,
        "tight_prompt_ns_per_token": tight["tree"].prompt_ns_per_token,
        "learned_tokens": plan.learned,
        "learned_tree_p50_us": turns["learned"].draft_us(50),
        "learned_tree_p99_us": turns["learned"].draft_us(99),
        "by_strategy": {name: _figures_of(turns[name], tight[name]) for name in STRATEGIES},
        "graph_tree_p50_us": graph_us,
        "graph_tree_ratio": round(graph_us / tree_us, 2),
    }


def _figures_of(between: Turns, alone: Turns) -> dict[str, float]:
    return {
        "p50_us": between.draft_us(50),
        "p99_us": between.draft_us(99),
        "tight_p50_us": alone.draft_us(50),
        "tight_p99_us": alone.draft_us(99),
        "nodes": between.nodes_per_draft,
    }
