"""How each strategy makes a draft for a sequence; :mod:`speculant_graph.draft.session_drafter` keeps the sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from speculant_graph.config import DraftConfig
from speculant_graph.draft.batch import DraftBatch
from speculant_graph.draft.generator import CHAIN_STRATEGY_NAMES, DraftGenerator
from speculant_graph.draft.options import DraftOptions, changed
from speculant_graph.draft.proposal_tree import draft_beam, draft_tree
from speculant_graph.draft.sampled_tree import TreeShape
from speculant_graph.draft.sequence import DraftedSequence, SequenceProposals
from speculant_graph.draft.sources import ROW_WIDTH
from speculant_graph.draft.tree import grow
from speculant_graph.draft.views import Handles
from speculant_graph.draft.workspace import MAX_NODES, Tree
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, StrategyName

CALIBRATED: frozenset[StrategyName] = frozenset(("adaptive", "tree", "specexec", "beam"))
"""Strategies whose path probabilities are calibrated."""
_MOST_KEPT = 256


def target_row_width(config: DraftConfig) -> int:
    """Return how many of the target's top tokens a strategy learns at every verified position; 0 if it learns none."""
    if config.strategy in CALIBRATED:
        return ROW_WIDTH if "recycled" in config.sources else 0
    return config.filler_top_k if config.strategy == "nasd" and config.filler_top_k > 1 else 0


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """What is wanted for one sequence."""

    session_id: int
    """The sequence."""
    node_budget: int
    """Most nodes; more than 1,024 are never drafted."""
    seed: int = 0
    """Seed of ``sampling``: the same seed and position give the same draft."""
    options: DraftOptions | None = None
    """How to draft; None: as the rest of the batch."""


class Strategies:
    """All strategies over one graph and one workspace; calls must not overlap."""

    def __init__(self, graph: NgramGraph | None, config: DraftConfig, handles: Handles, tree: Tree) -> None:
        """Take what drafts are made from.

        Args:
            graph: the corpus; None for none.
            config: how to draft.
            handles: those of graph, calibration and workspace.
            tree: the workspace's tree, which kernels write to.
        """
        self._graph = graph
        self._handles = handles
        self._tree = tree
        # Clients may ask for anything, so neither is kept for ever.
        self.changed = lru_cache(_MOST_KEPT)(partial(changed, config))
        """Returns the settings as options want them, the same object for the same options."""
        self._generator = lru_cache(_MOST_KEPT)(self._make_generator)

    def draft(self, sequence: DraftedSequence, order: DraftOrder, options: DraftOptions) -> Draft:
        """Draft for one sequence, and note the draft there.

        Raises:
            ConfigError: the strategy needs a graph, or to know the vocabulary.
            DraftRequestError: an option is out of its bounds.
        """
        options = order.options or options
        config = self.changed(options)
        strategy = config.strategy
        sequence.go_by(config)
        budget = min(order.node_budget, MAX_NODES)
        if budget <= 0:
            draft = Draft(strategy=strategy)
        elif strategy in ("tree", "adaptive"):
            draft = self._grown(sequence, config, budget)
        elif strategy in CHAIN_STRATEGY_NAMES:
            draft = self._drawn(sequence, config, budget, order.seed, options)
        elif strategy == "nasd":
            draft = sequence.draft_from_storage(budget)
        else:
            draft = self._searched(sequence, config, budget)
        if options.min_path_probability > 0.0:
            draft = _without_improbable(draft, options.min_path_probability)
        sequence.is_calibrated |= strategy in CALIBRATED
        sequence.offer([draft], 0)
        return draft

    def _grown(self, sequence: DraftedSequence, config: DraftConfig, budget: int) -> Draft:
        branches = 1 if config.strategy == "adaptive" else config.max_branches
        size = grow(self._handles.values, sequence.handles(), budget, config.max_depth, branches, sequence.trust)
        tree = self._tree
        return Draft(
            token_ids=tuple(tree.tokens[1 : size + 1].tolist()),
            parents=tuple(tree.parents[1 : size + 1].tolist()),
            path_probabilities=tuple(tree.probabilities[1 : size + 1].tolist()),
            strategy=config.strategy,
            terminated_early=size < budget,
        )

    def _drawn(
        self, sequence: DraftedSequence, config: DraftConfig, budget: int, seed: int, options: DraftOptions
    ) -> Draft:
        generator = self._generator(config)
        draft = generator.draft(
            sequence.history.latest(generator.graph.max_order).tolist(),
            budget,
            config.strategy,
            seed=seed,
            position=len(sequence.history),
            max_candidates=config.max_candidates,
            coupling=config.coupling,
            temperature=config.temperature,
            tree=_tree_shape(config, options),
        )
        return dataclasses.replace(draft, proposals=()) if options.omit_proposals else draft

    def _searched(self, sequence: DraftedSequence, config: DraftConfig, budget: int) -> Draft:
        source = SequenceProposals(self._handles, sequence, config.max_branches)
        make = draft_tree if config.strategy == "specexec" else draft_beam
        return make(source, budget, config.max_depth, config.beam_width, config.max_branches)

    def from_graph(
        self,
        states: Int64Array,
        budgets: Sequence[int],
        seeds: Sequence[int],
        positions: Sequence[int],
        options: DraftOptions,
        max_support: int,
    ) -> DraftBatch:
        """Draft by ``greedy`` or ``sampling`` for sequences whose places in the graph are known, as arrays.

        Raises:
            ConfigError: there is no graph.
        """
        config = self.changed(options)
        return self._generator(config).draft_batch(
            states,
            [min(budget, MAX_NODES) for budget in budgets],
            config.strategy,
            seeds=seeds,
            positions=positions,
            max_candidates=config.max_candidates,
            max_support=0 if options.omit_proposals else max_support,
            coupling=config.coupling,
            temperature=config.temperature,
            tree=_tree_shape(config, options),
        )

    def _make_generator(self, config: DraftConfig) -> DraftGenerator:
        """Return what ``greedy`` and ``sampling`` draft with."""
        if self._graph is None:
            raise ConfigError(f"strategy {config.strategy} drafts from a graph; give one, or choose adaptive or tree")
        return DraftGenerator(self._graph, config)


def _tree_shape(config: DraftConfig, options: DraftOptions) -> TreeShape | None:
    """Return what trees ``sampling`` draws; None for chains. Without q no rule has any use for siblings."""
    if options.siblings == "none" or options.omit_proposals:
        return None
    return TreeShape(options.siblings == "independent", config.max_branches, config.max_depth)


def _without_improbable(draft: Draft, least: float) -> Draft:
    """Return a draft without the paths that are less probable; a path is never more so than the one it goes on from."""
    kept = [node for node, probability in enumerate(draft.path_probabilities) if probability >= least]
    if len(kept) == len(draft.path_probabilities):
        return draft
    number = {0: 0} | {node + 1: place + 1 for place, node in enumerate(kept)}
    return dataclasses.replace(
        draft,
        token_ids=tuple(draft.token_ids[node] for node in kept),
        parents=tuple(number[draft.parents[node]] for node in kept),
        path_probabilities=tuple(draft.path_probabilities[node] for node in kept),
        terminated_early=True,
    )
