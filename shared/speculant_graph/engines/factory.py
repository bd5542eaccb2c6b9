"""Opens the source of an engine's drafts: a graph in its process, a sidecar, or the engine's own output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from speculant_graph.budget import LearnedCost
from speculant_graph.config import ClientConfig, DraftConfig, FoldConfig, NgramDraftConfig
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.rows import DrafterRows
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, GraphPaths, load_settings
from speculant_graph.similar import question
from speculant_graph.strategies import STRATEGIES
from speculant_graph.types import Drafter, Fingerprint, RowDrafter

if TYPE_CHECKING:
    from speculant_graph.client.local import LocalDrafter

_PROBE = 0
"""Id of the session that tests the connection to a sidecar; no sequence of an engine has this id."""


class EngineSettings(CommandSettings):
    """Settings of an engine's drafter.

    If there is neither a graph nor a sidecar, drafts come from the engine's own output.
    """

    graph_path: GraphPaths = []  # noqa: RUF012 - every instance gets its own copy
    """Graph file that a drafter in the engine's process drafts from, or up to four files as layers."""
    learned: Path | None = None
    """Folder in which a drafter in this process keeps accepted text across restarts; only one process may use it.
    Without this folder, accepted text stays in memory. A sidecar keeps accepted text in a folder of its own."""
    draft: NgramDraftConfig = NgramDraftConfig()
    """Drafting options; the engine's own setting limits the number of drafted tokens."""
    fold: FoldConfig = FoldConfig()
    """Whether and when older text in the folder 'learned' is folded into graph files."""
    client: ClientConfig = ClientConfig()
    """Connection to the drafter sidecar, if there is one."""


def load_engine_settings(given: Mapping[str, Any], what: str) -> EngineSettings:
    """Return an engine's settings from all sources.

    A missing setting comes from the environment or else from the TOML file, as for commands.

    Args:
        given: settings by name, with sections as dictionaries: ``{"client": {"address": "unix:///..."}}``.
        what: name of the argument that contains these settings, for error messages.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f'{what} is not an object; give one such as {{"graph_path": "graph.pkl"}}')
    for name in set(given) - set(EngineSettings.model_fields):
        hint = question(str(name), EngineSettings.model_fields) or f"it has {', '.join(EngineSettings.model_fields)}"
        raise ConfigError(f"{what} has no setting {name}; {hint}")
    settings = load_settings(EngineSettings, what, (), given)
    if settings.graph_path and settings.client.address:
        graphs = _shown(settings.graph_path)
        raise ConfigError(
            f"{what}, environment and speculant.toml together name a graph ({graphs}) and a sidecar "
            f"({settings.client.address}); leave out graph_path or client.address"
        )
    if settings.learned is not None and settings.client.address:
        raise ConfigError(f"{what} sets 'learned', but a sidecar has its own folder; leave out learned")
    return settings


def open_sessions(
    settings: EngineSettings,
    tokenizer: Fingerprint,
    *,
    most_drafted: int,
    vocabulary_size: int,
    makes_trees: bool = False,
    has_fixed_width: bool = False,
) -> EngineSessions:
    """Open the drafter, and return the object that drafts for the engine's sequences.

    Args:
        settings: the engine's settings, with the source of drafts.
        tokenizer: fingerprint of the engine's tokenizer.
        most_drafted: maximum number of drafted tokens that the engine verifies per sequence.
        vocabulary_size: vocabulary size of the model.
        makes_trees: whether the engine verifies trees.
        has_fixed_width: whether a pass verifies the same number of tokens for drafts of any length, so that a longer
            draft costs no more.

    Raises:
        ConfigError: a setting is wrong.
        GraphFileError: a graph can't be read.
        TokenizerMismatchError: a graph, in this process or in the sidecar, was built with another tokenizer.
    """
    if not isinstance(most_drafted, int) or most_drafted < 1:
        raise ConfigError(f"can't draft up to {most_drafted!r} tokens; give a whole number of 1 or more")
    config = settings.draft
    if not makes_trees and (chain := STRATEGIES[config.strategy].chain):
        config = config.model_copy(update={"strategy": chain})
    where = settings.client.address or _shown(settings.graph_path)
    drafter: RowDrafter
    if settings.client.address:
        drafter, has_model = DrafterRows(_sidecar(settings, tokenizer, config), makes_trees=makes_trees), True
    else:
        local = drafter = _local(settings, tokenizer, config)
        has_model = local.has_neural
    if not where:
        logger.warning("no graph and no sidecar is set: drafts come only from text decoded here")
    else:
        logger.info("drafts of up to {} tokens by {} from {}", most_drafted, config.strategy, where)
    return EngineSessions(
        drafter,
        most_drafted=most_drafted,
        vocabulary_size=vocabulary_size,
        cost=None if has_fixed_width else LearnedCost(),
        has_neural=has_model and "sources" in STRATEGIES[config.strategy].reads and "neural" in config.sources,
    )


def _sidecar(settings: EngineSettings, tokenizer: Fingerprint, config: DraftConfig) -> Drafter:
    from speculant_graph.client import SidecarFleet, client_of

    client = client_of(settings.client, tokenizer=tokenizer, draft=config, wants_proposals=False)
    try:
        for each in client.clients.values() if isinstance(client, SidecarFleet) else [client]:
            each.open(_PROBE)  # raises for another tokenizer; a sidecar that does not answer may start later
            each.finish(_PROBE)
    except BaseException:
        client.close()
        raise
    return client


def _local(settings: EngineSettings, tokenizer: Fingerprint, config: DraftConfig) -> LocalDrafter:
    from speculant_graph.client.local import LocalDrafter
    from speculant_graph.draft.learning.learned_store import LearnedStore
    from speculant_graph.graph.layers import load_layers

    graphs = load_layers(settings.graph_path, tokenizer, verify=True)
    store = None
    if settings.learned is not None:
        store = LearnedStore(config.max_learned_tokens, settings.learned, tokenizer, settings.fold)
    return LocalDrafter(graphs, config, store, vocabulary_size=tokenizer.vocabulary_size)


def _shown(paths: Sequence[Path]) -> str:
    return " + ".join(map(str, paths))
