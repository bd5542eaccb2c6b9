"""Makes a drafter from settings: loads the draft model, checks that it suits the target, and measures its cost."""

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
    """Load a draft model without adapter, and the identity of its tokenizer.

    Args:
        config: the model.
        verifier: all other settings of loading; device and dtype are the target's.

    Raises:
        ConfigError: model or tokenizer can't be loaded.
    """
    own: dict[str, Any] = {
        "model_name": config.name,
        "tokenizer_name": None,
        "memory_budget": 0,  # it is not part of the target's budget
        "host_budget": 0,
        "resident_layers": None,
    }
    loading = (verifier or VerifierConfig()).model_copy(update=own)
    try:
        # transformers can't unpack MXFP4 later, which an adapter needs.
        return load_model(loading, may_stream=False, may_pack=False), load_tokenizer(loading)[1]
    except ConfigError as error:
        if error.field != MODEL_SETTING:
            raise
        raise error.renamed("draft_model.name") from error


def load_draft_model(config: DraftModelConfig, verifier: VerifierConfig, target: TargetModel) -> TargetModel:
    """Load the draft model.

    Raises:
        ConfigError: it can't be loaded.
        TokenizerMismatchError: it has another tokenizer than the target.
    """
    # On the target's device, wherever a caller has put it.
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
        target: the model it drafts for.
        verifier: number of rows.
        draft: drafting settings.
        ngrams: the n-grams' drafter; None: the model drafts alone.
        budget: the target's budget for drafts; None: typical costs are assumed for both models.
    """
    passes = DraftPasses(model, verifier.max_batch_size)
    if budget is None or STRATEGIES[draft.strategy].fills_budget:  # such strategies ignore the price
        own = RowCurve(model.typical_cost.curve, _size(model) / _size(target))
        price = DraftPrice(StepBudget(target.typical_cost), own)
    else:
        table = load_or_measure(model, batches_up_to(verifier.max_batch_size), most_nodes=WIDEST - 1)
        price = DraftPrice(budget, ObservedCosts(table))
    return ModelDrafter(passes, price, draft, ngrams)


def _size(model: TargetModel) -> int:
    return sum(parameter.numel() for parameter in model.model.parameters())
