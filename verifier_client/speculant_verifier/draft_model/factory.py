"""Creates a drafter from settings: loads the draft model, checks its tokenizer, and measures the cost of its passes."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from speculant_graph.budget import RowCurve, StepBudget
from speculant_graph.config import DraftConfig, DraftModelConfig, VerifierConfig
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.strategies import STRATEGIES
from speculant_graph.types import Drafter, Fingerprint
from speculant_verifier.draft_model.draft_budget import WIDEST, DraftPrice
from speculant_verifier.draft_model.drafter import ModelDrafter
from speculant_verifier.draft_model.passes import DraftPasses
from speculant_verifier.model import TargetModel
from speculant_verifier.model.loading import load_model, load_tokenizer
from speculant_verifier.sources import MODEL_SETTING
from speculant_verifier.speculation import ObservedCosts, batches_up_to, load_or_measure


def load_base(config: DraftModelConfig, verifier: VerifierConfig | None = None) -> tuple[PreTrainedModel, Fingerprint]:
    """Load a draft model, without an adapter; return the model and the fingerprint of its tokenizer.

    Args:
        config: the model.
        verifier: the target's settings for loading, such as device and dtype.

    Raises:
        ConfigError: the model or its tokenizer can't be loaded.
    """
    own: dict[str, Any] = {
        "model_name": config.name,
        "tokenizer_name": None,
        "memory_budget": 0,  # outside the target's budget
        "host_budget": 0,
        "resident_layers": None,
    }
    loading = (verifier or VerifierConfig()).model_copy(update=own)
    try:
        # An adapter needs unpacked weights, and transformers can't unpack MXFP4 after loading.
        return load_model(loading, may_stream=False, may_pack=False), load_tokenizer(loading)[1]
    except ConfigError as error:
        if error.field != MODEL_SETTING:
            raise
        raise error.renamed("draft_model.name") from error


def load_draft_model(config: DraftModelConfig, verifier: VerifierConfig, target: TargetModel) -> TargetModel:
    """Load the draft model, and check that its tokenizer is the target's.

    Raises:
        ConfigError: the model can't be loaded.
        TokenizerMismatchError: the model's tokenizer differs from the target's.
    """
    # Use the target's actual device, because a caller may have moved the target.
    model, fingerprint = load_base(config, verifier.model_copy(update={"device": str(target.device)}))
    if fingerprint.sha256 != target.fingerprint.sha256:
        raise TokenizerMismatchError(
            f"draft model '{config.name}' has another tokenizer than '{target.name}'; choose one of the same family, "
            "or leave draft_model.name out"
        )
    return TargetModel(model, None, config.name, fingerprint)


def open_model_drafter(
    model: TargetModel,
    target: TargetModel,
    verifier: VerifierConfig,
    draft: DraftConfig,
    ngrams: Drafter | None,
    budget: StepBudget | None,
) -> ModelDrafter:
    """Assemble a drafter.

    Args:
        model: the draft model.
        target: the target model.
        verifier: the target's settings, which contain the number of rows.
        draft: drafting settings.
        ngrams: the n-gram drafter; None: the model drafts alone.
        budget: the target's draft budget; None: typical costs are assumed for both models.
    """
    passes = DraftPasses(model, verifier.max_batch_size)
    if budget is None or STRATEGIES[draft.strategy].fills_budget:  # such strategies ignore the cost
        own = RowCurve(model.typical_cost.curve, _size(model) / _size(target))
        price = DraftPrice(StepBudget(target.typical_cost), own)
    else:
        table = load_or_measure(model, batches_up_to(verifier.max_batch_size), most_nodes=WIDEST - 1)
        price = DraftPrice(budget, ObservedCosts(table))
    return ModelDrafter(passes, price, draft, ngrams)


def _size(model: TargetModel) -> int:
    return sum(parameter.numel() for parameter in model.model.parameters())
