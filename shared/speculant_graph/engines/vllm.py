"""vLLM: the proposer that its method ``custom_class`` asks for drafts.

.. code-block:: sh

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "speculant_graph.engines.vllm.SpeculantProposer"}'
        --additional-config '{"speculant": {"graph_path": "graph.pkl"}}'

vLLM calls it after every pass with the rows of its batch, without the ids of requests, and verifies chains of any
length up to ``num_speculative_tokens``.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.factory import load_engine_settings, open_sessions
from speculant_graph.log import log_to_stderr
from speculant_graph.types import TokenId

_SETTINGS = "--additional-config 'speculant'"


class SpeculantProposer:
    """What vLLM makes in every worker and calls after every pass."""

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings below ``speculant`` of ``--additional-config`` and open what drafts come from.

        Args:
            vllm_config: vLLM's ``VllmConfig``.

        Raises:
            ConfigError: a setting is wrong, or the tokenizer can't be read.
            GraphFileError: the graph can't be read.
            TokenizerMismatchError: the graph is of another tokenizer than the model's.
        """
        model = vllm_config.model_config
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(model.max_model_len)
        self.sessions: EngineSessions | None = None
        """The batch's sequences; None in workers that vLLM takes no drafts of."""
        if not _is_asked():
            return
        log_to_stderr("INFO")
        self.sessions = open_sessions(
            load_engine_settings(dict(vllm_config.additional_config or {}).get("speculant", {}), _SETTINGS),
            CorpusTokenizer.load(model.tokenizer, special_tokens="parse").fingerprint,
            most_drafted=self._most,
            vocabulary_size=int(model.get_vocab_size()),
        )
        atexit.register(self.close)  # vLLM does not report when it ends

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing: vLLM calls this of every proposer."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[TokenId]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
        **_: object,
    ) -> list[list[TokenId]]:
        """Draft for the batch.

        Args:
            sampled_token_ids: per row what the pass added to it; nothing for rows that still read their prompts.
            num_tokens_no_spec: length of every row's text, with that.
            token_ids_cpu: the texts, shape ``[rows, max_model_len]``.
            slot_mappings: not used.

        Returns:
            Per row up to ``num_speculative_tokens`` tokens.
        """
        if self.sessions is None:
            return [[] for _ in sampled_token_ids]
        decoding = [index for index, sampled in enumerate(sampled_token_ids) if sampled]
        lengths = num_tokens_no_spec[decoding].tolist()
        made = self.sessions.draft(
            [token_ids_cpu[index, :length] for index, length in zip(decoding, lengths, strict=True)],
            [self._max_length - length - 1 for length in lengths],
            read_prompts=len(decoding) < len(sampled_token_ids),
        ).lists()
        if len(decoding) == len(sampled_token_ids):
            return made
        drafts: list[list[TokenId]] = [[] for _ in sampled_token_ids]
        for index, draft in zip(decoding, made, strict=True):
            drafts[index] = draft
        return drafts

    def close(self) -> None:
        """End all sequences, so that what they accepted is learned, and let the drafter go."""
        if self.sessions is not None:
            self.sessions.close()


def _is_asked() -> bool:
    """Whether vLLM takes the drafts of this worker: of several that share a layer's weights only the first's."""
    from vllm.distributed import get_tensor_model_parallel_rank, model_parallel_is_initialized

    return not model_parallel_is_initialized() or get_tensor_model_parallel_rank() == 0
