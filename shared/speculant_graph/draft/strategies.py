"""How each strategy makes a draft for a sequence; :mod:`speculant_graph.draft.session_drafter` keeps the sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from speculant_graph.config import DraftConfig
from speculant_graph.draft.batch import DraftBatch
from speculant_graph.draft.generator import CHAIN_STRATEGY_NAMES, DraftGenerator
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.proposal_tree import draft_beam, draft_tree
from speculant_graph.draft.sampled_tree import TreeShape
from speculant_graph.draft.sequence import DraftedSequence, SequenceProposals
from speculant_graph.draft.sources import ROW_WIDTH
from speculant_graph.draft.tree import grow
from speculant_graph.draft.views import Handles
from speculant_graph.draft.workspace import MAX_DEPTH, MAX_NODES, Tree
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import Int64Array
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, MixingName, SiblingsName, StrategyName

CALIBRATED: frozenset[StrategyName] = frozenset(("adaptive", "tree", "specexec", "beam"))
"""Strategies whose path probabilities are calibrated."""


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
    strategy: StrategyName | None = None
    """How to draft; the configured strategy if None."""
    siblings: SiblingsName | None = None
    """Whether ``sampling`` draws a tree; what the options say if None."""


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
        self._config = config
        self._handles = handles
        self._tree = tree
        self._generators: dict[MixingName, DraftGenerator] = {}

    def draft(self, sequence: DraftedSequence, order: DraftOrder, options: DraftOptions) -> Draft:
        """Draft for one sequence, and note the draft there.

        Raises:
            ConfigError: there is no such strategy, or it needs a graph.
        """
        strategy = order.strategy or options.strategy or self._config.strategy
        budget = min(order.node_budget, MAX_NODES)
        if budget <= 0:
            draft = Draft(strategy=strategy)
        elif strategy in ("tree", "adaptive"):
            draft = self._grown(sequence, strategy, budget, options)
        elif strategy in CHAIN_STRATEGY_NAMES:
            draft = self._drawn(sequence, strategy, budget, order, options)
        elif strategy == "nasd":
            draft = sequence.draft_from_storage(budget)
        elif strategy in ("specexec", "beam"):
            draft = self._searched(sequence, strategy, budget, options)
        else:
            raise ConfigError(f"no strategy {strategy!r}; DraftConfig lists them")
        if options.min_path_probability > 0.0:
            draft = _without_improbable(draft, options.min_path_probability)
        sequence.is_calibrated |= strategy in CALIBRATED
        sequence.offer([draft], 0)
        return draft

    def _grown(self, sequence: DraftedSequence, strategy: StrategyName, budget: int, options: DraftOptions) -> Draft:
        depth, branches = options.max_depth or self._config.max_depth, self._branches(options)
        if strategy == "adaptive":
            branches = 1
        depth = min(depth, MAX_DEPTH)
        size = grow(self._handles.values, sequence.handles(), budget, depth, branches, sequence.trust)
        tree = self._tree
        return Draft(
            token_ids=tuple(tree.tokens[1 : size + 1].tolist()),
            parents=tuple(tree.parents[1 : size + 1].tolist()),
            path_probabilities=tuple(tree.probabilities[1 : size + 1].tolist()),
            strategy=strategy,
            terminated_early=size < budget,
        )

    def _branches(self, options: DraftOptions) -> int:
        return min(options.max_branches or self._config.max_branches, self._config.max_branches)

    def _tree_shape(self, siblings: SiblingsName, options: DraftOptions) -> TreeShape | None:
        """Return what trees ``sampling`` draws; None for chains. Without q no rule has any use for siblings."""
        if siblings == "none" or options.omit_proposals:
            return None
        depth = min(options.max_depth or self._config.max_depth, MAX_DEPTH)
        return TreeShape(siblings == "independent", self._branches(options), depth)

    def _drawn(
        self, sequence: DraftedSequence, strategy: StrategyName, budget: int, order: DraftOrder, options: DraftOptions
    ) -> Draft:
        generator = self._generator(strategy, options.mixing)
        draft = generator.draft(
            sequence.history.latest(generator.graph.max_order).tolist(),
            budget,
            strategy,
            seed=order.seed,
            position=len(sequence.history),
            max_candidates=options.max_candidates or self._config.max_candidates,
            coupling=options.coupling or self._config.coupling,
            tree=self._tree_shape(order.siblings or options.siblings, options),
        )
        return dataclasses.replace(draft, proposals=()) if options.omit_proposals else draft

    def _searched(self, sequence: DraftedSequence, strategy: StrategyName, budget: int, options: DraftOptions) -> Draft:
        branches = self._branches(options)
        source = SequenceProposals(self._handles, sequence, branches)
        make = draft_tree if strategy == "specexec" else draft_beam
        depth = min(options.max_depth or self._config.max_depth, MAX_DEPTH)
        width = min(options.beam_width or self._config.beam_width, MAX_NODES)
        return make(source, budget, depth, width, branches)

    def from_graph(
        self,
        states: Int64Array,
        budgets: Sequence[int],
        seeds: Sequence[int],
        positions: Sequence[int],
        strategy: StrategyName,
        options: DraftOptions,
        max_support: int,
    ) -> DraftBatch:
        """Draft by ``greedy`` or ``sampling`` for sequences whose places in the graph are known, as arrays.

        Raises:
            ConfigError: there is no graph.
        """
        return self._generator(strategy, options.mixing).draft_batch(
            states,
            [min(budget, MAX_NODES) for budget in budgets],
            strategy,
            seeds=seeds,
            positions=positions,
            max_candidates=options.max_candidates or self._config.max_candidates,
            max_support=0 if options.omit_proposals else max_support,
            coupling=options.coupling or self._config.coupling,
            tree=self._tree_shape(options.siblings, options),
        )

    def _generator(self, strategy: StrategyName, mixing: MixingName | None) -> DraftGenerator:
        """Return what ``greedy`` and ``sampling`` draft with."""
        if self._graph is None:
            raise ConfigError(f"strategy {strategy} drafts from a graph; give one, or choose adaptive or tree")
        mixing = mixing or self._config.mixing
        if mixing not in self._generators:
            self._generators[mixing] = DraftGenerator(self._graph, self._config.model_copy(update={"mixing": mixing}))
        return self._generators[mixing]


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
