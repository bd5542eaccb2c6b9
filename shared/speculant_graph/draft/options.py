"""What one request may choose of how drafts are made; the rest is in :class:`~speculant_graph.config.DraftConfig`."""

from __future__ import annotations

from dataclasses import fields

from pydantic import ValidationError

from speculant_graph.config import DraftConfig
from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.types import DEFAULT_OPTIONS, DraftOptions
from speculant_graph.validation_messages import humanise

__all__ = ["DEFAULT_OPTIONS", "REQUEST_OPTIONS", "DraftOptions", "changed", "options_of"]

REQUEST_OPTIONS = tuple(each.name for each in fields(DraftOptions) if each.name in DraftConfig.model_fields)
"""Settings that a request may choose."""


def options_of(config: DraftConfig) -> DraftOptions:
    """Return what a user has set of a drafter's settings, as options of another drafter.

    Raises:
        ConfigError: something was set that no request can choose.
    """
    given = {name: getattr(config, name) for name in config.model_fields_set}
    for name in sorted(given.keys() - {*REQUEST_OPTIONS, "k"}):  # the number of nodes comes with every step
        if given[name] != DraftConfig.model_fields[name].default:
            raise ConfigError(f"draft.{name} is for all clients of a sidecar; leave it out here, and set it there")
    return DraftOptions(**{name: value for name, value in given.items() if name in REQUEST_OPTIONS})


def changed(config: DraftConfig, options: DraftOptions) -> DraftConfig:
    """Return a drafter's settings as a request wants them.

    Raises:
        DraftRequestError: a value is out of its bounds.
    """
    requested = {name: value for name in REQUEST_OPTIONS if (value := getattr(options, name)) is not None}
    try:
        return DraftConfig.model_validate(config.model_dump() | requested)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, problem = first["loc"][0], humanise(first)
        raise DraftRequestError(f"the option {name} {problem}; correct it, or leave it out") from None
