"""What is known of a model's attention, and which models are refused because drafts would be verified wrongly."""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel

from speculant_graph.errors import ConfigError

_EXPERTS_IMPLEMENTATION = "grouped_mm"


def check_architecture(model: PreTrainedModel, name: str) -> None:
    """Refuse models whose attention would not take our masks as they are meant.

    Raises:
        ConfigError: the model's attention can't be chosen, or bounds its logits in a way ours does not.
    """
    config = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False) or getattr(config, "attn_logit_softcapping", None):
        raise ConfigError(
            f"model '{name}' ({type(model).__name__}) has an attention that can't verify drafts exactly yet; "
            "choose a model of the gpt-oss, Llama, Mistral or Qwen families"
        )


def sliding_layers(config: PreTrainedConfig, name: str) -> tuple[bool, ...]:
    """Return per layer whether it has a window; models that do not name the kinds of layers have one kind.

    Raises:
        ConfigError: a kind whose past can't be rolled back by masks.
    """
    declared = getattr(config, "layer_types", None)
    if declared is None:
        has_window = bool(getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True))
        return (has_window,) * int(config.num_hidden_layers)
    if unknown := set(declared) - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"model '{name}' has layers of kind {', '.join(sorted(unknown))}, which can't be verified yet; "
            "choose a model with full or sliding attention"
        )
    return tuple(kind == "sliding_attention" for kind in declared)


def choose_experts(model: PreTrainedModel) -> None:
    """Multiply tokens with experts in groups, where the model lets one choose.

    The alternative 'batched_mm' copies the weights of experts once per token, so a pass over a draft would cost as
    much as so many passes.
    """
    if model._can_set_experts_implementation():
        model.set_experts_implementation(_EXPERTS_IMPLEMENTATION)
