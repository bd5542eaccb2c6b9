"""Speculative decoding with an n-gram graph as the drafter: the public Python API.

Names that need no torch are imported as they are used; those of the verifier come from the other half of the
distribution and need its extra. Both are resolved late, so ``import speculant_graph`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from speculant_graph.extras import missing_extra
from speculant_graph.log import silence

if TYPE_CHECKING:
    from speculant_graph.client import AsyncDrafterClient, DrafterClient, LocalDrafter, NullDrafter
    from speculant_graph.config import (
        ClientConfig,
        DraftConfig,
        GenerationConfig,
        GraphConfig,
        ServerConfig,
        ServiceConfig,
        VerifierConfig,
    )
    from speculant_graph.config_learning import DraftModelConfig, RecordConfig
    from speculant_graph.draft.cost import CostCurve
    from speculant_graph.draft.generator import DraftGenerator
    from speculant_graph.draft.learned import LearnedStore
    from speculant_graph.draft.session_drafter import DraftOrder, SessionDrafter
    from speculant_graph.errors import SpeculantError
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.types import Draft, Drafter, Feedback, Proposal, SequenceStep
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.model import TargetModel
    from speculant_verifier.ngram_assisted import (
        GreedyProcessor,
        MultinomialProcessor,
        ngram_assisted_speculative_generate,
    )
    from speculant_verifier.ngram_storage import INgramStorage, NGramStorage, OneLevelNGramStorage
    from speculant_verifier.records.database import read_records, replay_of
    from speculant_verifier.records.record import RequestRecord
    from speculant_verifier.results import GenerationResult, PhaseTimes, RecentAcceptance, StepEvent, TokenLogprobs
    from speculant_verifier.speculation import CostTable, load_or_measure
    from speculant_verifier.transformers_generate import speculant_generate

_HOMES = {
    "AsyncDrafterClient": "speculant_graph.client",
    "ClientConfig": "speculant_graph.config",
    "CostCurve": "speculant_graph.draft.cost",
    "CostTable": "speculant_verifier.speculation",
    "Draft": "speculant_graph.types",
    "DraftConfig": "speculant_graph.config",
    "DraftModelConfig": "speculant_graph.config_learning",
    "DraftGenerator": "speculant_graph.draft.generator",
    "DraftOrder": "speculant_graph.draft.session_drafter",
    "Drafter": "speculant_graph.types",
    "DrafterClient": "speculant_graph.client",
    "Feedback": "speculant_graph.types",
    "GenerationConfig": "speculant_graph.config",
    "GenerationResult": "speculant_verifier.results",
    "GraphBuilder": "speculant_graph.graph.build.builder",
    "GraphConfig": "speculant_graph.config",
    "GreedyProcessor": "speculant_verifier.ngram_assisted",
    "INgramStorage": "speculant_verifier.ngram_storage",
    "LearnedStore": "speculant_graph.draft.learned",
    "LocalDrafter": "speculant_graph.client",
    "MultinomialProcessor": "speculant_verifier.ngram_assisted",
    "NGramStorage": "speculant_verifier.ngram_storage",
    "NgramGraph": "speculant_graph.graph.ngrams",
    "NullDrafter": "speculant_graph.client",
    "OneLevelNGramStorage": "speculant_verifier.ngram_storage",
    "PhaseTimes": "speculant_verifier.results",
    "Proposal": "speculant_graph.types",
    "RecentAcceptance": "speculant_verifier.results",
    "RecordConfig": "speculant_graph.config_learning",
    "RequestRecord": "speculant_verifier.records.record",
    "SequenceStep": "speculant_graph.types",
    "ServerConfig": "speculant_graph.config",
    "ServiceConfig": "speculant_graph.config",
    "SessionDrafter": "speculant_graph.draft.session_drafter",
    "SpeculantError": "speculant_graph.errors",
    "SpeculativeDecoder": "speculant_verifier.decoder",
    "StepEvent": "speculant_verifier.results",
    "TargetModel": "speculant_verifier.model",
    "TokenLogprobs": "speculant_verifier.results",
    "VerifierConfig": "speculant_graph.config",
    "load_or_measure": "speculant_verifier.speculation",
    "ngram_assisted_speculative_generate": "speculant_verifier.ngram_assisted",
    "read_records": "speculant_verifier.records.database",
    "replay_of": "speculant_verifier.records.database",
    "speculant_generate": "speculant_verifier.transformers_generate",
}

__all__ = [
    "AsyncDrafterClient",
    "ClientConfig",
    "CostCurve",
    "CostTable",
    "Draft",
    "DraftConfig",
    "DraftGenerator",
    "DraftModelConfig",
    "DraftOrder",
    "Drafter",
    "DrafterClient",
    "Feedback",
    "GenerationConfig",
    "GenerationResult",
    "GraphBuilder",
    "GraphConfig",
    "GreedyProcessor",
    "INgramStorage",
    "LearnedStore",
    "LocalDrafter",
    "MultinomialProcessor",
    "NGramStorage",
    "NgramGraph",
    "NullDrafter",
    "OneLevelNGramStorage",
    "PhaseTimes",
    "Proposal",
    "RecentAcceptance",
    "RecordConfig",
    "RequestRecord",
    "SequenceStep",
    "ServerConfig",
    "ServiceConfig",
    "SessionDrafter",
    "SpeculantError",
    "SpeculativeDecoder",
    "StepEvent",
    "TargetModel",
    "TokenLogprobs",
    "VerifierConfig",
    "load_or_measure",
    "ngram_assisted_speculative_generate",
    "read_records",
    "replay_of",
    "speculant_generate",
]

silence()


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        value: object = getattr(importlib.import_module(_HOMES[name]), name)
    except ImportError as error:
        explained = missing_extra(error, "verifier" if _HOMES[name].startswith("speculant_verifier") else "build")
        if explained is None:
            raise
        raise ImportError(f"{name} needs more than the base installation: {explained}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, resolved or not."""
    return sorted({*globals(), *__all__})
