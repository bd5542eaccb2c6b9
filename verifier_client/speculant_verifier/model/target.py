"""The target model: its interface for decoding, and its forward pass over a slot cache."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from speculant_graph.budget import CURVES, RowCurve
from speculant_graph.config import GenerationConfig, VerifierConfig
from speculant_graph.corpus.tokenize import encode_prompt, fingerprint_of
from speculant_graph.errors import ConfigError
from speculant_graph.machine import anonymous_bytes, available_bytes
from speculant_graph.types import EMPTY_DRAFT, Draft, Fingerprint, TokenId
from speculant_verifier.cache import CacheLayout, SlotCache
from speculant_verifier.cache.pass_layout import ForwardPlan, sizes_of
from speculant_verifier.conversation.harmony_tokens import HarmonyTokens
from speculant_verifier.half_precision import products_for
from speculant_verifier.model.attention import attends_in_parts, use_attention
from speculant_verifier.model.loading import (
    check_architecture,
    choose_experts,
    load_model,
    load_tokenizer,
    sliding_layers,
)
from speculant_verifier.model.recorder import NUM_UNSTEADY, PassRecorder
from speculant_verifier.offload import OFFLOAD, Offload
from speculant_verifier.structured import Grammar, Grammars, form_of

PREFILL_CHUNK = 512
"""Maximum number of prompt tokens that are prefilled between two steps of the running sequences."""
_UNTOUCHED = 256e6
"""Maximum number of bytes of memory that are kept free for temporary allocations."""
_UNTOUCHED_SHARE = 0.05
"""Share of this process's available memory that is kept free if this share is less than ``_UNTOUCHED`` bytes, as on
small machines and in small containers."""


class TargetModel:
    """A causal language model that can verify drafts."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast | None,
        name: str,
        fingerprint: Fingerprint | None = None,
        *,
        cuda_graphs: bool = False,
    ) -> None:
        """Wrap a loaded model; most callers use :meth:`load` instead.

        Args:
            model: any causal model of transformers whose attention implementation can be chosen.
            tokenizer: the model's fast tokenizer; None if callers use only token ids.
            name: the model's name, for messages.
            fingerprint: the tokenizer's fingerprint, if known.
            cuda_graphs: whether to record passes if the model is on a GPU; the weights must then not be moved.

        Raises:
            ConfigError: drafts can't be verified exactly with this model.
        """
        check_architecture(model, name)
        self.model = model
        self.model.train(False)
        choose_experts(model)
        self._tokenizer = tokenizer
        self.name = name
        config = model.config.get_text_config()
        self.takes_mask_per_layer_type = getattr(config, "layer_types", None) is not None
        is_sliding = sliding_layers(config, name)
        heads: int = config.num_attention_heads
        kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        folds_masks = use_attention(model)
        self.layout = CacheLayout(
            is_sliding=is_sliding,
            window=config.sliding_window if any(is_sliding) else None,
            groups=heads // kv_heads,
            kv_heads=kv_heads,
            folds_masks=folds_masks,
            dtype=model.dtype,
            device=model.device,
            rounds=cuda_graphs and _can_be_recorded(model),
            splits=folds_masks and attends_in_parts(model),
        )
        """Layout of the model's KV caches."""
        self.offload: Offload | None = getattr(model, OFFLOAD, None)
        """Object that streams the weights that do not fit into memory; None if all weights fit."""
        self.stall_s = 0.0
        """Total seconds for which passes waited for weights; 0 if all weights are in memory."""
        self._products = products_for(model)
        self._recorder = PassRecorder(self._compute) if self.layout.rounds else None
        self.is_steady = self._recorder is None
        """Whether the latest pass was as fast as later passes of the same shape will be."""
        self.vocabulary_size: int = config.vocab_size
        self.max_length: int = config.max_position_embeddings
        self.end_token_ids = _end_token_ids(model, tokenizer)
        self._fingerprint = fingerprint

    @classmethod
    def load(cls, config: VerifierConfig) -> TargetModel:
        """Load a model and its tokenizer from a folder or from the hub.

        Raises:
            ConfigError: the model or the tokenizer can't be loaded; the message has the reason and the fix.
        """
        tokenizer, fingerprint = load_tokenizer(config)
        return cls(
            load_model(config),
            tokenizer,
            config.model_name,
            fingerprint,
            cuda_graphs=config.cuda_graphs,
        )

    def with_weights(self, model: PreTrainedModel) -> TargetModel:
        """Return a target with the same tokenizer and name, but other weights of the same architecture."""
        return TargetModel(model, self._tokenizer, self.name, self._fingerprint)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The model's tokenizer.

        Raises:
            ConfigError: the model was created without a tokenizer.
        """
        if self._tokenizer is None:
            raise ConfigError(f"'{self.name}' was given without its tokenizer, which this needs; give token ids")
        return self._tokenizer

    @cached_property
    def decode(self) -> Callable[[Sequence[TokenId]], str]:
        """Function that converts token ids to text, including control tokens."""
        return cast("Callable[[Sequence[TokenId]], str]", partial(self.tokenizer.decode, skip_special_tokens=False))

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the model's tokenizer."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self.name, self.tokenizer.backend_tokenizer)
        return self._fingerprint

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.vocabulary_size, self.end_token_ids)

    def prepare_grammars(self) -> None:
        """Prepare structured output in advance, which takes seconds. Thread-safe."""
        self._grammars.prepare()

    def grammar(self, config: GenerationConfig, prompt: Sequence[TokenId]) -> Grammar | None:
        """Return the compiled grammar that constrains a prompt's output; None if it is unconstrained. Thread-safe.

        The first call takes seconds, later calls take milliseconds; results are cached.

        Raises:
            GenerationRequestError: the schema or grammar is invalid.
            ConfigError: the model has no tokenizer.
        """
        if not (config.json_schema or config.grammar):
            return None
        return self._grammars.compiled(form_of(config), prompt)

    @property
    def device(self) -> torch.device:
        """Device that holds the model's weights."""
        return self.layout.device

    @property
    def num_unsteady(self) -> int:
        """Maximum number of first passes of a shape that are slower than later passes of this shape."""
        return 0 if self._recorder is None else NUM_UNSTEADY

    @property
    def typical_cost(self) -> RowCurve:
        """Cost curve of passes, in arbitrary units, that is assumed if no measurement exists."""
        return RowCurve(CURVES[self.typical_curve])

    @property
    def typical_curve(self) -> Literal["dense", "cpu-moe"]:
        """Name of the typical cost curve for this kind of model."""
        has_experts = bool(getattr(self.model.config.get_text_config(), "num_local_experts", 0))
        return "cpu-moe" if has_experts else "dense"

    def close(self) -> None:
        """Stop streaming weights; a model that streams weights can't run afterwards."""
        if self.offload is not None:
            self.offload.close()

    def spare_bytes(self) -> int | None:
        """Return the free memory minus a reserve, in bytes; it may be negative, and is None if unknown.

        On a GPU the result is None: a GPU reports lack of memory by errors, so polling is not needed.
        """
        free = available_bytes() if self.device.type == "cpu" else None
        if free is None:
            return None
        taken = anonymous_bytes()
        spare = free - int(min(_UNTOUCHED, _UNTOUCHED_SHARE * (free + taken)))
        bound = None if self.offload is None else self.offload.plan.most_bytes
        return spare if bound is None else min(spare, bound - taken)

    def free_memory(self) -> None:
        """Release unused memory that the device's allocator caches."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif sys.platform == "linux":
            with suppress(OSError, AttributeError):  # a C library other than glibc
                ctypes.CDLL(None).malloc_trim(0)

    def new_cache(self, num_rows: int, *, widest_pass: int | None = None) -> SlotCache:
        """Return an empty KV cache for this model (see :class:`~speculant_verifier.cache.SlotCache`).

        Args:
            num_rows: number of sequences.
            widest_pass: maximum number of tokens per row in one pass; with this limit, sliding-window layers keep
                little more than the window. None: no limit.
        """
        return SlotCache(self.layout, num_rows, widest_pass=widest_pass)

    def encode(self, text: str) -> list[TokenId]:
        """Tokenise a prompt in the same way as transformers and drafters."""
        return encode_prompt(self.tokenizer.backend_tokenizer, text)

    @torch.inference_mode()
    def forward(
        self,
        pending: Sequence[Sequence[TokenId]],
        cache: SlotCache,
        rows: Sequence[int],
        drafts: Sequence[Draft] | None = None,
        num_written: int = 0,
        num_before: int = 0,
    ) -> Tensor:
        """Run one pass over pending tokens and the drafts below them; ``commit_all`` then commits accepted nodes.

        Args:
            pending: per row, the tokens that are not yet in the cache, at least one.
            cache: receives keys and values.
            rows: the cache's rows, in the same order.
            drafts: per row, the tree below the last pending token; None for no drafts.
            num_written: number of tokens and nodes that earlier passes wrote since the last commit, equal for all rows.
                A number above 0 includes all pending tokens, and the pass then computes only the remaining nodes.
            num_before: number of pending tokens, before the last pending token, for which logits are also returned.

        Returns:
            Logits ``[n, num_before + 1 + longest draft, V]`` on the model's device, of the last ``num_before + 1``
            pending tokens and of every draft node. Logits before a row's first pending token or beyond its draft are
            meaningless. If ``num_written`` is not 0, only the logits of the new nodes are returned, ``[n, T, V]``.
        """
        if num_written:
            return self._run(pending, cache, rows, drafts, 0, num_written)
        ends = [len(tokens) - 1 for tokens in pending]
        width = 1 + max((len(draft.token_ids) for draft in drafts or ()), default=0)
        if max(ends) == 0 and not num_before:
            keep: int | Tensor = 0
        else:  # with a large vocabulary, the LM head costs as much as several layers
            last = max(sizes_of([end + 1 for end in ends], drafts)) - 1
            wanted = [[max(0, min(end + node, last)) for node in range(-num_before, width)] for end in ends]
            keep = torch.tensor(wanted, device=self.device)
        return self._run(pending, cache, rows, drafts, keep)[:, : num_before + width]

    @torch.inference_mode()
    def prefill(self, token_ids: Sequence[Sequence[TokenId]], cache: SlotCache, rows: Sequence[int]) -> None:
        """Prefill chunks of prompts into rows and commit them, without computing logits.

        Args:
            token_ids: chunk of the prompt for every row.
            cache: receives keys and values.
            rows: rows of the cache.
        """
        self._run(token_ids, cache, rows, None, torch.zeros(0, dtype=torch.long, device=self.device))
        cache.commit_all(rows, [range(len(tokens)) for tokens in token_ids])

    def _run(
        self,
        pending: Sequence[Sequence[TokenId]],
        cache: SlotCache,
        rows: Sequence[int],
        drafts: Sequence[Draft] | None,
        keep: int | Tensor,
        num_written: int = 0,
    ) -> Tensor:
        if not self.layout.rounds or not isinstance(keep, int) or num_written:
            return self._pass(pending, cache, rows, drafts, keep, num_written)
        block = cache.block_of(rows)
        all_pending, all_drafts = [pending[0][-1:]] * len(block), [EMPTY_DRAFT] * len(block)
        for index, row in enumerate(rows):
            all_pending[row] = pending[index]
            all_drafts[row] = EMPTY_DRAFT if drafts is None else drafts[index]
        logits = self._pass(all_pending, cache, block, all_drafts, keep)
        return logits[: len(rows)] if list(rows) == list(range(len(rows))) else logits[list(rows)]

    def _pass(
        self,
        pending: Sequence[Sequence[TokenId]],
        cache: SlotCache,
        rows: Sequence[int],
        drafts: Sequence[Draft] | None,
        keep: int | Tensor,
        num_written: int = 0,
    ) -> Tensor:
        plan = cache.plan(rows, [len(tokens) for tokens in pending], drafts, num_written)
        width = num_written + plan.position_ids.shape[1]
        nodes = [
            [*tokens, *(drafts[index].token_ids if drafts is not None else ())] for index, tokens in enumerate(pending)
        ]
        padded = [tokens + tokens[-1:] * (width - len(tokens)) for tokens in nodes]
        token_ids = torch.tensor([tokens[num_written:] for tokens in padded], device=self.device)
        if self._recorder is not None and isinstance(keep, int) and not num_written:
            logits = self._recorder.run(token_ids, plan, cache)
            self.is_steady = self._recorder.is_steady
            return logits
        return self._compute(token_ids, plan, cache, keep)

    def _compute(self, token_ids: Tensor, plan: ForwardPlan, cache: SlotCache, keep: int | Tensor = 0) -> Tensor:
        masks: Any = {"full_attention": plan.full, "sliding_attention": plan.sliding}
        if not self.takes_mask_per_layer_type:
            masks = plan.sliding if plan.full is None else plan.full
        try:
            with self._products:
                output = self.model(
                    token_ids,
                    position_ids=plan.position_ids,
                    attention_mask=masks,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=keep,
                )
        finally:
            if self.offload is not None:
                self.stall_s = self.offload.stall_s
        logits: Tensor = output.logits
        return logits


def _can_be_recorded(model: PreTrainedModel) -> bool:
    """Return whether passes can be recorded as CUDA graphs, which requires that no operation waits for the GPU."""
    has_experts = bool(getattr(model.config.get_text_config(), "num_local_experts", 0))
    # With other dtypes, torch's grouped matrix product reads the number of tokens per expert from the GPU.
    is_unbroken = not has_experts or model.dtype == torch.bfloat16
    return model.device.type == "cuda" and not hasattr(model, OFFLOAD) and is_unbroken


def _end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None) -> frozenset[TokenId]:
    declared = model.generation_config.eos_token_id if model.generation_config else None
    if declared is None and tokenizer is not None:
        declared = tokenizer.eos_token_id
    harmony = None if tokenizer is None else HarmonyTokens.find(tokenizer)
    # Some checkpoints do not declare all of these, and the model would continue with the output of its own tool calls.
    stops: frozenset[TokenId] = frozenset() if harmony is None else harmony.stops
    if declared is None:
        return stops
    return stops.union(declared if isinstance(declared, list) else [declared])
