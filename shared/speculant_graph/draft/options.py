"""Applies a request's drafting options to the settings, and converts settings for the native core."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

import numpy as np
from loguru import logger
from pydantic import ValidationError

from speculant_graph._core import ROW_WIDTH, DraftSettings
from speculant_graph.config import DraftConfig
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.strategies import NGRAM_STRATEGIES, READ_BY, STRATEGIES, StrategyName
from speculant_graph.types import DEFAULT_OPTIONS, DraftOptions, SiblingsName
from speculant_graph.validation_messages import humanise

__all__ = ["DEFAULT_OPTIONS", "REQUEST_OPTIONS", "DraftOptions"]

REQUEST_OPTIONS = tuple(
    each.name
    for each in fields(DraftOptions)
    if each.name in DraftConfig.model_fields and set(READ_BY.get(each.name, NGRAM_STRATEGIES)) & set(NGRAM_STRATEGIES)
)
"""Names of the settings that a request for n-gram drafts may override."""
_SIBLINGS: tuple[SiblingsName, ...] = ("none", "without-replacement", "independent")


def warn_of_unread(config: DraftConfig, strategies: Collection[StrategyName] = ()) -> None:
    """Warn of every setting that the user has changed although no strategy in use reads it.

    Args:
        config: the user's settings.
        strategies: strategies that may be used; by default only the configured strategy.
    """
    used = strategies or (config.strategy,)
    for name, readers in READ_BY.items():
        is_changed = getattr(config, name) != DraftConfig.model_fields[name].default
        if is_changed and name in config.model_fields_set and not set(readers).intersection(used):
            where = "here" if strategies else f"with strategy {config.strategy}"
            logger.warning(
                "draft.{} does nothing {}: only {} reads it; leave it out", name, where, " or ".join(readers)
            )


def options_of(config: DraftConfig) -> DraftOptions:
    """Return the settings that the user has set, as options to send to another drafter.

    Raises:
        ConfigError: the user has set a setting that requests can't override.
    """
    given = {name: getattr(config, name) for name in config.model_fields_set}
    warn_of_unread(config)
    for name in sorted(given.keys() - {*REQUEST_OPTIONS, "k"}):  # every step carries its number of nodes
        if name in READ_BY and not set(READ_BY[name]).intersection(NGRAM_STRATEGIES):
            continue  # a sidecar never reads it
        if given[name] != DraftConfig.model_fields[name].default:
            raise ConfigError(
                "{field} applies to all clients of a sidecar",
                fix="leave it out here, and set it there",
                field=f"draft.{name}",
            )
    return DraftOptions(**{name: value for name, value in given.items() if name in REQUEST_OPTIONS})


def changed(config: DraftConfig, options: DraftOptions) -> DraftConfig:
    """Return a drafter's settings with a request's options applied.

    Raises:
        DraftRequestError: a value is out of its bounds.
    """
    requested = {name: value for name in REQUEST_OPTIONS if (value := getattr(options, name)) is not None}
    if not requested:
        return config
    try:
        return DraftConfig.model_validate(config.model_dump() | requested)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, problem = first["loc"][0], humanise(first)
        raise DraftRequestError(
            f"the option {{field}} {problem}", fix="correct it, or leave it out", field=str(name)
        ) from None


def require_k(k: int) -> int:
    """Return ``k``, the number of tokens to draft, after a check against the bounds of ``draft.k``.

    Raises:
        DraftRequestError: ``k`` is out of bounds, or not a number.
    """
    try:
        return DraftConfig(k=int(k) if isinstance(k, np.integer) else k).k
    except ConfigError as error:
        raise error.as_class(DraftRequestError, "k") from None


def settings_of(config: DraftConfig, has_graph: bool, options: DraftOptions = DEFAULT_OPTIONS) -> DraftSettings:
    """Return the settings in the native core's form, with a request's options applied.

    Raises:
        DraftRequestError: an option is out of its bounds.
        ConfigError: the strategy needs a graph but there is none, or the strategy runs only in a verifier.
    """
    if options.strategy is not None and options.strategy not in STRATEGIES:
        *others, last = [f"'{each}'" for each in NGRAM_STRATEGIES if has_graph or not STRATEGIES[each].needs_graph]
        raise DraftRequestError(
            f"the option strategy must be {', '.join(others)} or {last} (got {options.strategy!r})",
            fix="correct it, or leave it out",
            field="strategy",
        )
    config = changed(config, options)
    require_source(config, has_graph)
    wanted, has_session = STRATEGIES[config.strategy], "session" in config.sources
    return DraftSettings(
        strategy=config.strategy,
        method=wanted.runs_by,
        fills_budget=wanted.fills_budget,
        siblings=_SIBLINGS.index(options.siblings),
        sources=(
            has_session,
            "corpus" in config.sources,
            has_session,  # skip-grams
            "learned" in config.sources and config.max_learned_tokens > 0,
            "recycled" in config.sources,
            "neural" in config.sources and not options.omit_neural,
        ),
        max_depth=config.max_depth,
        max_branches=config.max_branches if "max_branches" in wanted.reads else 1,
        max_candidates=config.max_candidates,
        temperature=config.temperature,
        is_coupled=options.coupling == "gumbel",
        omits_proposals=options.omit_proposals,
    )


def require_source(config: DraftConfig, has_graph: bool) -> None:
    """Raise an error if a strategy has no source to draft from.

    Raises:
        ConfigError: the strategy needs a graph but there is none, or the strategy runs only in a verifier.
    """
    if config.strategy not in NGRAM_STRATEGIES:
        raise ConfigError(
            f"strategy {config.strategy} drafts in a verifier, without a graph",
            fix="choose tree here",
            field="draft.strategy",
        )
    if STRATEGIES[config.strategy].needs_graph and not has_graph:
        raise ConfigError(
            f"strategy {config.strategy} drafts from a graph",
            fix="give a graph, or choose adaptive or tree",
            field="draft.strategy",
        )


def target_row_width(config: DraftConfig) -> int:
    """Return how many of the target model's top tokens the strategy learns per verified position; 0 for none."""
    reads = STRATEGIES[config.strategy].reads
    if "filler_top_k" in reads:
        return config.filler_top_k if config.filler_top_k > 1 else 0
    return ROW_WIDTH if "sources" in reads and "recycled" in config.sources else 0
