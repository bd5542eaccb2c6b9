"""Speculative decoding with an n-gram graph as the drafter: the public Python API.

All names are imported on first use, so ``import speculant_graph`` costs nothing. The verifier's names come from the
package ``speculant_verifier`` and need the extra ``[verifier]``; all other names work without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from speculant_graph.extras import missing_extra
from speculant_graph.log import silence

if TYPE_CHECKING:
    from speculant_graph.budget import CostCurve
    from speculant_graph.client import AsyncDrafterClient, DrafterClient, LocalDrafter, NullDrafter
    from speculant_graph.config import (
        AccessConfig,
        ClientConfig,
        DraftConfig,
        DraftModelConfig,
        FoldConfig,
        GenerationConfig,
        GraphConfig,
        RecordConfig,
        ServerConfig,
        ServiceConfig,
        VerifierConfig,
    )
    from speculant_graph.draft.generator import DraftGenerator
    from speculant_graph.draft.learning.learned_store import LearnedStore
    from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter
    from speculant_graph.errors import SpeculantError
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.types import Draft, Drafter, Feedback, Proposal, SequenceStep
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.model import TargetModel
    from speculant_verifier.nasd.generation import (
        GreedyProcessor,
        INgramStorage,
        MultinomialProcessor,
        NGramStorage,
        OneLevelNGramStorage,
        ngram_assisted_speculative_generate,
    )
    from speculant_verifier.records.database import read_records, replay_of
    from speculant_verifier.records.record import RequestRecord
    from speculant_verifier.results import GenerationResult, PhaseTimes, StepEvent, TokenLogprobs
    from speculant_verifier.speculation import CostTable, load_or_measure
    from speculant_verifier.transformers_generate import speculant_generate

_MODULES = {
    "speculant_graph.client": ("AsyncDrafterClient", "DrafterClient", "LocalDrafter", "NullDrafter"),
    "speculant_graph.config": (
        "AccessConfig", "ClientConfig", "DraftConfig", "DraftModelConfig", "FoldConfig", "GenerationConfig",
        "GraphConfig", "RecordConfig", "ServerConfig", "ServiceConfig", "VerifierConfig",
    ),
    "speculant_graph.budget": ("CostCurve",),
    "speculant_graph.draft.generator": ("DraftGenerator",),
    "speculant_graph.draft.learning.learned_store": ("LearnedStore",),
    "speculant_graph.draft.session_drafter": ("DraftRequest", "SessionDrafter"),
    "speculant_graph.errors": ("SpeculantError",),
    "speculant_graph.graph.build.builder": ("GraphBuilder",),
    "speculant_graph.graph.ngrams": ("NgramGraph",),
    "speculant_graph.types": ("Draft", "Drafter", "Feedback", "Proposal", "SequenceStep"),
    "speculant_verifier.decoder": ("SpeculativeDecoder",),
    "speculant_verifier.model": ("TargetModel",),
    "speculant_verifier.nasd.generation": (
        "GreedyProcessor", "INgramStorage", "MultinomialProcessor", "NGramStorage", "OneLevelNGramStorage",
        "ngram_assisted_speculative_generate",
    ),
    "speculant_verifier.records.database": ("read_records", "replay_of"),
    "speculant_verifier.records.record": ("RequestRecord",),
    "speculant_verifier.results": ("GenerationResult", "PhaseTimes", "StepEvent", "TokenLogprobs"),
    "speculant_verifier.speculation": ("CostTable", "load_or_measure"),
    "speculant_verifier.transformers_generate": ("speculant_generate",),
}  # fmt: skip
"""Maps each module to the public names that are imported from it."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__version__: str
"""Version of the installed distribution; read from its metadata on first use."""

__all__ = [
    "AccessConfig", "AsyncDrafterClient", "ClientConfig", "CostCurve", "CostTable", "Draft", "DraftConfig",
    "DraftGenerator", "DraftModelConfig", "DraftRequest", "Drafter", "DrafterClient", "Feedback", "FoldConfig",
    "GenerationConfig", "GenerationResult", "GraphBuilder", "GraphConfig", "GreedyProcessor", "INgramStorage",
    "LearnedStore", "LocalDrafter", "MultinomialProcessor", "NGramStorage", "NgramGraph", "NullDrafter",
    "OneLevelNGramStorage", "PhaseTimes", "Proposal", "RecordConfig", "RequestRecord", "SequenceStep", "ServerConfig",
    "ServiceConfig", "SessionDrafter", "SpeculantError", "SpeculativeDecoder", "StepEvent", "TargetModel",
    "TokenLogprobs", "VerifierConfig", "load_or_measure", "ngram_assisted_speculative_generate", "read_records",
    "replay_of", "speculant_generate",
]  # fmt: skip

silence()


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name == "__version__":
        from speculant_graph.version import VERSION

        globals()[name] = VERSION
        return VERSION
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
    """List the public names, including names that are not imported yet."""
    return sorted({*globals(), *__all__})
