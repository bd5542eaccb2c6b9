"""SGLang's NGRAM worker with our drafts instead of SGLang's corpus. Experimental: it was never run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.factory import load_engine_settings, open_sessions
from speculant_sglang import lay_out

_TENANT = "speculant_tenant"
"""Key of the tenant in a request's ``custom_params``."""


class SpeculantWorker(NGRAMWorker):  # type: ignore[misc]
    """One of the ranks that share the model; the first rank drafts and broadcasts."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        """Start like SGLang's own worker; settings are in variables (``SPECULANT_...``) or in ``speculant.toml``.

        Raises:
            ConfigError: a setting is wrong, or the tokenizer can't be read.
            GraphFileError: the graph can't be read.
            TokenizerMismatchError: the graph's tokenizer differs from the model's.
        """
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self._group = target_worker.get_tp_group()
        self.sessions: EngineSessions | None = None
        """The batch's sequences, on the first rank; None on other ranks."""
        if self._group.rank_in_group == 0:
            name = server_args.tokenizer_path or server_args.model_path
            self.sessions = open_sessions(
                load_engine_settings({}, "SGLang"),
                CorpusTokenizer.load(name, special_tokens="parse").fingerprint,
                most_drafted=self.draft_token_num - 1,
                vocabulary_size=int(target_worker.model_config.vocab_size),
                makes_trees=self.topk > 1,
                has_fixed_width=True,
            )

    def clear_cache_pool(self) -> None:
        """End all sequences."""
        super().clear_cache_pool()
        if self.sessions is not None:
            self.sessions.draft([], [])

    def _prepare_draft_tokens(self, batch: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        laid_out = None
        if self.sessions is not None:
            texts = self._texts(batch)
            drafts = self.sessions.draft(
                texts,
                [self.draft_token_num - 1] * len(texts),
                request_ids=[request.rid for request in batch.reqs],
                tenants=[_tenant_of(request) for request in batch.reqs],
            )
            laid_out = lay_out([int(text[-1]) for text in texts], drafts, self.draft_token_num)
        if self._group.world_size > 1:  # all ranks must use the same drafts, even if they are late
            laid_out = self._group.broadcast_object(laid_out, src=0)
        assert laid_out is not None
        return laid_out

    def _texts(self, batch: Any) -> list[NDArray[np.int32]]:
        """Return the full text of every request; if steps overlap, with tokens that ``output_ids`` still lacks."""
        width = self.draft_token_num
        new: list[list[int]] = [[]] * len(batch.reqs)
        if self.enable_overlap and not batch.grammar_needs_sync():
            accepted = batch.spec_info.accept_tokens.cpu().tolist()
            sizes = batch.spec_info.accept_lens.cpu().tolist()
            new = [accepted[row * width : row * width + size] for row, size in enumerate(sizes)]
        return [
            np.concatenate([
                np.asarray(request.origin_input_ids_unpadded, np.int32),
                np.asarray(request.output_ids, np.int32),
                np.asarray(more, np.int32),
            ])
            for request, more in zip(batch.reqs, new, strict=True)
        ]  # fmt: skip

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Do nothing, because accepted tokens come with the next step."""


def _tenant_of(request: Any) -> str | None:
    custom = getattr(request.sampling_params, "custom_params", None) or {}
    return custom.get(_TENANT)
