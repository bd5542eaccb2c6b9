"""The target model and its tokenizer: loading, and one forward pass over the slots of a cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from speculant_graph.config import VerifierConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer, fingerprint_of
from speculant_graph.draft.cost import COST_CURVES
from speculant_graph.errors import ConfigError
from speculant_graph.types import Draft, Fingerprint, TokenId
from speculant_verifier.attention import register
from speculant_verifier.cache import SlotCache


class TargetModel:
    """A causal language model ready to verify drafts."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        name: str,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        """Wrap a loaded model; :meth:`load` is the usual way in.

        Args:
            model: any causal model of transformers whose attention implementation can be chosen.
            tokenizer: its tokenizer, of the fast kind.
            name: for messages to people.
            fingerprint: the tokenizer's identity, if it is known.
        """
        _check_architecture(model, name)
        self.model = model
        self.model.train(False)
        self.model.set_attn_implementation(register())
        self.tokenizer = tokenizer
        self.name = name
        config = model.config.get_text_config()
        self.layer_types = _layer_types(config, name)
        self.takes_mask_per_layer_type = getattr(config, "layer_types", None) is not None
        self.window: int | None = config.sliding_window if "sliding_attention" in self.layer_types else None
        self.num_layers: int = config.num_hidden_layers
        self.vocabulary_size: int = config.vocab_size
        self.max_length: int = config.max_position_embeddings
        self.end_token_ids = _end_token_ids(model, tokenizer)
        self.fingerprint = fingerprint or fingerprint_of(name, tokenizer.backend_tokenizer)

    @classmethod
    def load(cls, config: VerifierConfig) -> TargetModel:
        """Load model and tokenizer from a folder or from the hub.

        Raises:
            ConfigError: either can't be loaded; the message says why and what to change.
        """
        token = config.hf_token.get_secret_value() if config.hf_token else None
        device = _device(config.device)
        if device.type == "cpu":
            torch.set_num_threads(config.num_threads or max(1, (os.cpu_count() or 1) - 1))
        dtype = "float32" if config.dtype == "auto" and device.type == "cpu" else config.dtype
        try:
            tokenizer = AutoTokenizer.from_pretrained(config.tokenizer_name or config.model_name, token=token)
            model = AutoModelForCausalLM.from_pretrained(
                config.model_name,
                dtype=dtype,
                token=token,
                # Quantised weights must be put where they stay while they are loaded; moving them later fails.
                device_map={"": device},
                attn_implementation=register(),
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"can't load model '{config.model_name}': {reason} "
                "Give a folder with a checkpoint, or the hub name of a model you may download (--verifier.model-name)."
            ) from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ConfigError(
                f"the tokenizer of '{config.model_name}' is not a fast one; choose a model with a tokenizer.json"
            )
        return cls(model, tokenizer, config.model_name, _fingerprint(config, tokenizer, token))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    def typical_cost(self, num_rows: int, width: int) -> NDArray[np.float64]:
        """Return what passes cost where nothing was measured; see :data:`~.speculation.controller.Cost`."""
        del num_rows
        has_experts = bool(getattr(self.model.config.get_text_config(), "num_local_experts", 0))
        return COST_CURVES["cpu-moe" if has_experts else "dense"].table(width)

    def free_memory(self) -> None:
        """Give back what the device's allocator keeps for later."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def new_cache(self, num_rows: int) -> SlotCache:
        """Return an empty cache for ``num_rows`` sequences."""
        return SlotCache(self.num_layers, num_rows, self.window, self.device)

    def encode(self, text: str) -> list[TokenId]:
        """Tokenise a prompt as transformers does."""
        token_ids: list[int] = self.tokenizer.encode(text)
        return token_ids

    def decode(self, token_ids: Sequence[TokenId]) -> str:
        """Return the text of token ids, control tokens included."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[Sequence[TokenId]],
        cache: SlotCache,
        rows: Sequence[int],
        drafts: Sequence[Draft] | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """Run one pass; the cache's lengths do not change until ``commit``.

        Args:
            token_ids: per row, node 0 and its draft (or a stretch of the prompt); shorter rows are padded.
            cache: where keys and values go.
            rows: the cache's rows, in the same order.
            drafts: the trees below node 0; None for a plain run.
            last_only: compute logits of the last column only (prefill).

        Returns:
            Logits ``[n, T, V]``, or ``[n, 1, V]``, on the model's device; those of padding are meaningless.
        """
        num_nodes = max(len(ids) for ids in token_ids)
        padded = [[*ids, *([ids[-1]] * (num_nodes - len(ids)))] for ids in token_ids]
        plan = cache.plan(rows, num_nodes, drafts)
        masks: Any = {"full_attention": plan.visible, "sliding_attention": plan.visible_in_window}
        if not self.takes_mask_per_layer_type:
            [only_kind] = self.layer_types
            masks = masks[only_kind]
        output = self.model(
            torch.tensor(padded, device=self.device),
            position_ids=plan.position_ids,
            attention_mask=masks,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
        )
        logits: Tensor = output.logits
        return logits


def _fingerprint(config: VerifierConfig, tokenizer: PreTrainedTokenizerFast, token: str | None) -> Fingerprint:
    """Return the identity of the tokenizer's file, which is what graphs are built with.

    transformers adds special tokens of other files to the object that it makes of it.
    """
    name = config.tokenizer_name or config.model_name
    try:
        return CorpusTokenizer.load(name, token).fingerprint
    except ConfigError:  # it has no such file: transformers made it from an older format
        return fingerprint_of(name, tokenizer.backend_tokenizer)


def _check_architecture(model: PreTrainedModel, name: str) -> None:
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


def _layer_types(config: PreTrainedConfig, name: str) -> frozenset[str]:
    """Return the kinds of attention layers; models that do not name them have one kind.

    Raises:
        ConfigError: a kind whose past can't be rolled back by masks.
    """
    declared = getattr(config, "layer_types", None)
    if declared is None:
        has_window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        return frozenset({"sliding_attention" if has_window else "full_attention"})
    if unknown := set(declared) - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"model '{name}' has layers of kind {', '.join(sorted(unknown))}, which can't be verified yet; "
            "choose a model with full or sliding attention"
        )
    return frozenset(declared)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device '{name}'; use auto, cpu or cuda (--verifier.device)") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for but torch sees no GPU; use --verifier.device cpu")
    return device


def _end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[TokenId]:
    declared = model.generation_config.eos_token_id if model.generation_config else None
    declared = tokenizer.eos_token_id if declared is None else declared
    if declared is None:
        return frozenset()
    return frozenset(declared if isinstance(declared, list) else [declared])
