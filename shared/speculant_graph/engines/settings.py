"""How an engine gets its drafts: the same settings for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings


class EngineSettings(CommandSettings):
    """Where an engine's drafts come from, and what its passes cost.

    Without a graph and without a sidecar they come from what the engine itself wrote.
    """

    graph_path: Path | None = None
    """Draft in the engine's process from this graph file."""
    learned: Path | None = None
    """Folder in which a graph in this process keeps accepted text over restarts; one process has it. Without it, in
    memory. A sidecar has its own."""
    cost: Path | None = None
    """What a pass costs by the number of tokens in it, as JSON: {"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}.
    Without it that is learned from the time between drafts."""
    pad: bool = False
    """Draft as many tokens as the engine verifies for every sequence, whether they pay or not: for engines whose
    quickest passes are of one width."""
    draft: DraftConfig = DraftConfig()
    """How to draft; how much is the engine's own setting."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecar, if there is one."""


def load_engine_settings(given: Mapping[str, Any], what: str) -> EngineSettings:
    """Read what an engine was given, and below it environment and TOML file, as every command does.

    Args:
        given: settings by name, those of sections in tables: ``{"client": {"address": "unix:///..."}}``.
        what: what it was given as, for messages.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f'{what} is no object; give one such as {{"graph_path": "graph.pkl"}}')
    for name in set(given) - set(EngineSettings.model_fields):
        known = ", ".join(EngineSettings.model_fields)
        raise ConfigError(f"{what} has an unknown setting {name}; it may have {known}")
    settings = load_settings(EngineSettings, what, (), given)
    if settings.graph_path is not None and settings.client.address:
        raise ConfigError(
            f"{what}, environment and speculant.toml together name a graph ({settings.graph_path}) and a sidecar "
            f"({settings.client.address}); leave out graph_path or client.address"
        )
    if settings.learned is not None and settings.client.address:
        raise ConfigError(f"{what} sets 'learned', but a sidecar has its own folder; leave out learned")
    return settings
