"""What one request may choose of how drafts are made; the rest is in :class:`~speculant_graph.config.DraftConfig`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pydantic import ValidationError

from speculant_graph.complaints import plainly
from speculant_graph.config import DraftConfig
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.types import CouplingName, MixingName, SiblingsName, SourceName, StrategyName


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How to draft. Fields that are settings, too, have their meaning and bounds; None leaves them to the drafter's."""

    strategy: StrategyName | None = None
    max_candidates: int | None = None
    omit_proposals: bool = False
    """Leave the distributions q out."""
    max_depth: int | None = None
    max_branches: int | None = None
    beam_width: int | None = None
    min_path_probability: float = 0.0
    """Paths less probable than this are not drafted, where the strategy has probabilities."""
    mixing: MixingName | None = None
    coupling: CouplingName | None = None
    siblings: SiblingsName = "none"
    """Whether ``sampling`` draws trees. Without the distributions q, which rules for trees need, it never does."""
    temperature: float | None = None
    sources: frozenset[SourceName] | None = None
    cost_aware: bool | None = None
    attention_order: float | None = None
    attention_count: float | None = None
    attention_entropy: float | None = None
    attention_temperature: float | None = None
    nasd_order: int | None = None
    filler_top_k: int | None = None
    stop_if_unknown: bool | None = None


DEFAULT_OPTIONS = DraftOptions()
"""All left to the configuration."""
WISHES = tuple(each.name for each in fields(DraftOptions) if each.name in DraftConfig.model_fields)
"""Settings that a request may choose."""


def options_of(config: DraftConfig) -> DraftOptions:
    """Return what somebody has set of a drafter's settings, as options of another drafter.

    Raises:
        ConfigError: something was set that no request can choose.
    """
    given = {name: getattr(config, name) for name in config.model_fields_set}
    for name in sorted(given.keys() - {*WISHES, "k"}):  # the number of nodes comes with every step
        if given[name] != DraftConfig.model_fields[name].default:
            raise ConfigError(f"draft.{name} is for all clients of a sidecar; leave it out here, and set it there")
    return DraftOptions(**{name: value for name, value in given.items() if name in WISHES})


def changed(config: DraftConfig, options: DraftOptions) -> DraftConfig:
    """Return a drafter's settings as a request wants them.

    Raises:
        DraftRequestError: a value is out of its bounds.
    """
    wishes = {name: value for name in WISHES if (value := getattr(options, name)) is not None}
    try:
        return DraftConfig.model_validate(config.model_dump() | wishes)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, problem = first["loc"][0], plainly(first["msg"])
        raise DraftRequestError(f"the option {name} {problem}; mend it, or leave it out") from None
