"""Checks the compatibility of verification rules, drafting strategies and sources of drafts.

Every error message suggests only settings that the same call accepts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from loguru import logger

from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.errors import ConfigError, GenerationRequestError
from speculant_graph.strategies import READ_BY, STRATEGIES, StrategyName
from speculant_graph.types import RuleName

_ALL: tuple[StrategyName, ...] = tuple(STRATEGIES)
_DRAWN = tuple(name for name, each in STRATEGIES.items() if each.has_proposals)
_CHAINS: tuple[StrategyName, ...] = (  # sampled chains first: they have q, so more is accepted
    *_DRAWN,
    *(name for name, each in STRATEGIES.items() if not (each.makes_trees or each.has_proposals)),
)
_MOST_ADVISED = 2

FITTING: dict[RuleName, tuple[StrategyName, ...]] = {
    "follow": _ALL,
    "gumbel": _ALL,
    "nasd": _ALL,
    "token": _CHAINS,
    "block": _CHAINS,
    "tree-wor": _DRAWN,
    "tree-iid": _DRAWN,
}
"""Suitable drafting strategies for each verification rule, the best first. A verification rule is lossless even with an
unsuitable strategy."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The available sources of drafts."""

    has_ngrams: bool = False
    """Whether there is a graph or a sidecar."""
    has_model: bool = False
    """Whether there is a draft model."""
    has_drafter: bool = False
    """Whether there is a custom drafter."""

    def problem(self, strategy: StrategyName) -> str:
        """Return why a strategy can't draft from these sources; empty if it can."""
        wanted = STRATEGIES[strategy]
        if wanted.runs_by == "draft-model" and not self.has_model:
            return f"strategy {strategy} drafts with a draft model, and there is none"
        if self.has_model and (self.has_drafter or not wanted.takes_model):
            able = ", ".join(name for name, each in STRATEGIES.items() if each.takes_model)
            return f"a draft model works with the strategies {able}, and without a drafter of your own"
        if not wanted.number and self.has_ngrams:
            return f"strategy {strategy} drafts from {wanted.evidence} alone, without a graph or a sidecar"
        return ""

    def usable(self, rule: RuleName) -> list[StrategyName]:
        """Return the strategies that suit a rule and can draft, the best first."""
        return [
            each
            for each in FITTING[rule]
            if not self.problem(each) and (self.has_ngrams or self.has_drafter or not STRATEGIES[each].needs_graph)
        ]

    def variations(self) -> list[tuple[Sources, str]]:
        """Return variants of the sources, with one added or removed, and the change of settings for each."""
        return [
            (replace(self, has_model=False), "leave draft_model.name out")
            if self.has_model
            else (replace(self, has_model=True), "name a draft model in draft_model.name"),
            (replace(self, has_ngrams=False), "leave the graph and the sidecar out")
            if self.has_ngrams
            else (replace(self, has_ngrams=True), "give graph_path or client.address"),
        ]


def require_strategy(strategy: StrategyName, sources: Sources, rule: RuleName = "follow") -> None:
    """Reject a strategy that lacks a source, does not use a given source, or does not suit a rule.

    Raises:
        ConfigError: the strategy is rejected; the fix suggests settings that the same call accepts.
    """
    problem = sources.problem(strategy)
    if strategy not in FITTING[rule]:
        problem = f"rule {rule} does not fit drafts by strategy {strategy}"
    if not problem:
        return
    fixes: list[str] = []
    if usable := sources.usable(rule)[:_MOST_ADVISED]:
        fixes.append(f"choose {_listed(f'draft.strategy {each}' for each in usable)}")
    if strategy in FITTING[rule]:
        fixes += [fix for other, fix in sources.variations() if not other.problem(strategy)]
    elif not sources.problem(strategy):
        fixes.append("choose generation.rule follow")
    if not fixes:
        fixes.append(f"choose generation.rule follow and draft.strategy {sources.usable('follow')[0]}")
    raise ConfigError(problem, fix=", or ".join(fixes), field="draft.strategy")


def suited(draft: DraftConfig, generation: GenerationConfig, sources: Sources) -> DraftConfig:
    """Return drafting settings that suit a request's rule; choose the strategy if it was not set.

    Args:
        draft: the configured settings.
        generation: settings of the requests.
        sources: the available sources of drafts.

    Raises:
        ConfigError: the configured strategy does not suit the rule, no strategy suits it, or the requests exceed the
            settings.
    """
    chosen = _fitting(draft, generation, sources)
    try:
        require_request(generation, chosen)
    except GenerationRequestError as error:
        raise error.as_class(ConfigError, f"generation.{error.field}") from None
    return chosen


def _fitting(draft: DraftConfig, generation: GenerationConfig, sources: Sources) -> DraftConfig:
    if generation.speculation == "off" or not draft.k:
        return draft
    rule = generation.rule
    if draft.strategy in FITTING[rule] or "strategy" in draft.model_fields_set:
        require_strategy(draft.strategy, sources, rule)
        return draft
    usable = sources.usable(rule)
    if not usable:
        fixes = [fix for other, fix in sources.variations() if other.usable(rule)]
        problem = f"rule {rule} needs drafts by strategy {_listed(FITTING[rule][:_MOST_ADVISED])}"
        raise ConfigError(problem, fix=", or ".join([*fixes, "choose generation.rule follow"]), field="generation.rule")
    return draft.model_copy(update={"strategy": usable[0]})


def log_choice(rule: RuleName, chosen: DraftConfig, draft: DraftConfig) -> None:
    """Log the strategy chosen for a rule, if it differs from the setting."""
    if chosen.strategy != draft.strategy:
        logger.warning(
            "rule {}: drafting by strategy {}, which fits it, instead of {}; draft.strategy names another",
            rule,
            chosen.strategy,
            draft.strategy,
        )


_SETTINGS = {
    "node_budget": "k",
    "max_depth": "max_depth",
    "draft_temperature": "temperature",
    "draft_n": "n",
    "draft_filler_top_k": "filler_top_k",
    "draft_stop_if_unknown": "stop_if_unknown",
}
"""Maps the drafting options of requests to the corresponding drafting settings."""
_BOUNDED = ("node_budget", "max_depth", "draft_n", "draft_filler_top_k")
"""Options of requests that may not exceed the corresponding setting."""


def require_request(config: GenerationConfig, draft: DraftConfig) -> None:
    """Reject a request's drafting options if they exceed the settings or the strategy ignores them.

    Raises:
        GenerationRequestError: an option is rejected; the message names the setting.
    """
    for name, setting in _SETTINGS.items():
        value, most = getattr(config, name), getattr(draft, setting)
        if value is None:
            continue
        readers = READ_BY.get(setting, _ALL)
        if name == "max_depth" and draft.strategy not in readers:
            setting, most = "k", draft.k
        elif draft.strategy not in readers:
            problem = f"{{field}} does nothing with strategy {draft.strategy}: only {_listed(readers)} reads it"
            raise GenerationRequestError(problem, fix="leave it out", field=name)
        if name in _BOUNDED and value > most:
            problem = f"{{field}} is {value}, more than draft.{setting} of {most}"
            raise GenerationRequestError(problem, fix=f"give at most {most}", field=name)


def unsuited(rule: RuleName, strategy: StrategyName) -> str:
    """Return a warning if a request's rule does not suit the strategy of its drafts; empty if it does."""
    if strategy in FITTING[rule]:
        return ""
    return (
        f"rule {rule} does not fit drafts by strategy {strategy} and verified them like rule follow; "
        f"leave the rule out, or draft by strategy {_listed(FITTING[rule][:_MOST_ADVISED])}"
    )


def _listed(names: Iterable[str]) -> str:
    return " or ".join(names)
