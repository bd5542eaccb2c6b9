"""Opens the drafts of an engine: a graph in its process, a sidecar, or what the engine writes itself."""

from __future__ import annotations

from loguru import logger

from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import require_same
from speculant_graph.draft.cost import CostCurve
from speculant_graph.engines.price import KnownCost, LearnedCost, PassCost
from speculant_graph.engines.sessions import EngineSessions
from speculant_graph.engines.settings import EngineSettings
from speculant_graph.errors import ConfigError
from speculant_graph.types import Drafter, Fingerprint

_PROBE = 0
"""Session that no sequence of an engine has."""


def open_sessions(
    settings: EngineSettings,
    tokenizer: Fingerprint,
    *,
    most_drafted: int,
    vocabulary_size: int,
    makes_trees: bool = False,
    has_fixed_width: bool = False,
) -> EngineSessions:
    """Return the sessions of an engine.

    Args:
        settings: where drafts come from.
        tokenizer: the engine's.
        most_drafted: most tokens that it verifies for a sequence.
        vocabulary_size: of its model.
        makes_trees: whether it verifies trees.
        has_fixed_width: whether its passes are as wide whatever is drafted, so that there is nothing to price.

    Raises:
        ConfigError: a setting is wrong.
        GraphFileError: the graph can't be read.
        TokenizerMismatchError: the graph, here or at the sidecar, is of another tokenizer.
    """
    if not isinstance(most_drafted, int) or most_drafted < 1:
        raise ConfigError(f"at most {most_drafted!r} tokens can't be drafted; give a whole number from 1")
    cost: PassCost | None = None
    if not (settings.pad or has_fixed_width):
        cost = LearnedCost() if settings.cost is None else KnownCost(CostCurve.from_file(settings.cost))
    config = settings.draft
    if not makes_trees and config.strategy == "tree":  # the same as a chain
        config = config.model_copy(update={"strategy": "adaptive"})
    where = settings.client.address or settings.graph_path
    drafter = (_sidecar if settings.client.address else _local)(settings, tokenizer, config)
    if where is None:
        logger.warning("neither graph_path nor client.address is set: drafts come from what is written here alone")
    else:
        logger.info("drafts of up to {} tokens by {} from {}", most_drafted, config.strategy, where)
    return EngineSessions(
        drafter, most_drafted=most_drafted, vocabulary_size=vocabulary_size, makes_trees=makes_trees, cost=cost
    )


def _sidecar(settings: EngineSettings, tokenizer: Fingerprint, config: DraftConfig) -> Drafter:
    from speculant_graph.client import DrafterClient

    client = DrafterClient(settings.client, tokenizer=tokenizer, draft=config, wants_proposals=False)
    try:
        client.open(_PROBE)  # a sidecar that is away may come later, one of another tokenizer must not
        client.finish(_PROBE)
    except BaseException:
        client.close()
        raise
    return client


def _local(settings: EngineSettings, tokenizer: Fingerprint, config: DraftConfig) -> Drafter:
    from speculant_graph.client.local import LocalDrafter
    from speculant_graph.draft.learning.store import LearnedStore
    from speculant_graph.graph.ngrams import NgramGraph

    class LearningDrafter(LocalDrafter):
        """Closes its store, too."""

        def close(self) -> None:
            super().close()
            store.close()

    graph = None if settings.graph_path is None else NgramGraph.load(settings.graph_path, verify=True)
    if graph is not None:
        require_same(graph.metadata.tokenizer, tokenizer)
    if settings.learned is None:
        return LocalDrafter(graph, config, vocabulary_size=tokenizer.vocabulary_size)
    store = LearnedStore(config.max_learned_tokens, settings.learned, tokenizer, max_tenants=config.max_tenants)
    return LearningDrafter(graph, config, store, vocabulary_size=tokenizer.vocabulary_size)
