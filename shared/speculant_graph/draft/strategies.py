"""What each strategy is to the core, and the drafts that are not made there."""

from __future__ import annotations

from speculant_graph._core import ROW_WIDTH, DraftSettings
from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import DEFAULT_OPTIONS, DraftOptions, changed
from speculant_graph.errors import ConfigError
from speculant_graph.types import SiblingsName, StrategyName

CALIBRATED: frozenset[StrategyName] = frozenset(("adaptive", "tree", "specexec", "beam"))
"""Strategies whose path probabilities are calibrated."""
FROM_GRAPH: tuple[StrategyName, ...] = ("greedy", "sampling")
"""What a graph alone can do."""

STRATEGIES: tuple[StrategyName, ...] = ("greedy", "sampling", "adaptive", "tree", "nasd", "specexec", "beam")
"""Of n-grams, in the order of their numbers on the wire, from 1. ``model`` is a verifier's own."""
ATTENTION = (1.0, 0.25, 0.5, 1.0)
"""Mixing by attention: a context's score is the first times its order, plus the second times ln(1 + its count), minus
the third times the entropy of its successors in nats; the scores are divided by the fourth before the softmax."""
_SIBLINGS: tuple[SiblingsName, ...] = ("none", "without-replacement", "independent")


def target_row_width(config: DraftConfig) -> int:
    """Return how many of the target's top tokens a strategy learns at every verified position; 0 if it learns none."""
    if config.strategy in CALIBRATED:
        return ROW_WIDTH if "recycled" in config.sources else 0
    return config.filler_top_k if config.strategy == "nasd" and config.filler_top_k > 1 else 0


def core_settings(config: DraftConfig, options: DraftOptions = DEFAULT_OPTIONS) -> DraftSettings:
    """Return settings as the core takes them.

    Args:
        config: the settings, as the options want them.
        options: what no setting is: siblings, whether proposals are left out, and the least path probability.
    """
    has_session = "session" in config.sources
    return DraftSettings(
        strategy=STRATEGIES.index(config.strategy) + 1,
        siblings=_SIBLINGS.index(options.siblings),
        sources=(
            has_session,
            "corpus" in config.sources,
            has_session,  # skip-grams
            "learned" in config.sources and config.max_learned_tokens > 0,
            "recycled" in config.sources,
        ),
        attention=None if config.mixing == "longest" else ATTENTION,
        is_cost_aware=True,
        is_calibrated=config.strategy in CALIBRATED,
        max_depth=config.max_depth,
        max_branches=config.max_branches,
        min_path_probability=options.min_path_probability,
        max_candidates=config.max_candidates,
        temperature=config.temperature,
        is_coupled=config.coupling == "gumbel",
        omits_proposals=options.omit_proposals,
        beam_width=config.beam_width,
        nasd_order=config.nasd_order,
        filler_top_k=config.filler_top_k,
        stops_if_unknown=config.stop_if_unknown,
    )


def settings_of(config: DraftConfig, has_graph: bool, options: DraftOptions = DEFAULT_OPTIONS) -> DraftSettings:
    """Return settings as options want them.

    Raises:
        DraftRequestError: an option is out of its bounds.
        ConfigError: the strategy needs a graph, or a draft model.
    """
    config = changed(config, options)
    require_source(config, has_graph)
    return core_settings(config, options)


def require_source(config: DraftConfig, has_graph: bool) -> None:
    """Refuse a strategy that has nothing to draft from.

    Raises:
        ConfigError: the strategy needs a graph, or a draft model.
    """
    if config.strategy not in STRATEGIES:
        raise ConfigError(f"strategy {config.strategy} needs a draft model, which a verifier has; choose tree here")
    if config.strategy in FROM_GRAPH and not has_graph:
        raise ConfigError(f"strategy {config.strategy} drafts from a graph; give one, or choose adaptive or tree")
