"""vLLM: the proposer that the V1 model runner calls for drafts if the method is ``custom_class``.

.. code-block:: sh

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "speculant_graph.engines.vllm.SpeculantProposer"}'
        --additional-config '{"speculant": {"graph_path": "graph.pkl"}}'

vLLM calls the proposer after every pass with the rows of the batch, but without request ids. vLLM verifies chains of
any length up to ``num_speculative_tokens``.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.factory import EngineSettings, load_engine_settings, open_sessions
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layers import load_layers
from speculant_graph.log import log_to_stderr
from speculant_graph.similar import question
from speculant_graph.types import Fingerprint, TokenId

_SECTION = "speculant"
"""Key of this project's settings in ``--additional-config``."""
_MOST_TOKENS = 128
"""Maximum number of tokens in a draft for vLLM's rejection sampler; a longer draft stops the engine."""


class SpeculantProposer:
    """The proposer that vLLM creates in every worker and calls after every pass."""

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings under ``speculant`` in ``--additional-config``, and open the drafter.

        Args:
            vllm_config: vLLM's ``VllmConfig``.

        Raises:
            ConfigError: a setting is wrong, or the tokenizer can't be read.
            GraphFileError: the graph can't be read.
            TokenizerMismatchError: the graph was built with a tokenizer other than the model's.
        """
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self.sessions = open_for_worker(vllm_config)
        """Object that drafts for the batch's sequences; None in workers whose drafts vLLM does not use."""

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing; vLLM calls this method for every proposer."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[TokenId]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
        **_: object,
    ) -> list[list[TokenId]]:
        """Draft for every row of the batch.

        Args:
            sampled_token_ids: per row, the tokens that the pass added; empty for rows that still read their prompts.
            num_tokens_no_spec: per row, the length of the text, including the tokens that the pass added.
            token_ids_cpu: the texts, int32 ``[rows, max_model_len]``.
            slot_mappings: not used.

        Returns:
            For each row, up to ``num_speculative_tokens`` drafted tokens.
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
        """End all sequences, so that their accepted tokens are learned, and close the drafter."""
        if self.sessions is not None:
            self.sessions.close()


def check_config(vllm_config: Any) -> None:
    """Raise an error for wrong settings or graphs before vLLM starts its workers.

    Args:
        vllm_config: vLLM's ``VllmConfig``.

    Raises:
        ConfigError: a setting is wrong, drafts would be longer than vLLM allows, or the tokenizer can't be read.
        GraphFileError: the graph can't be read.
        TokenizerMismatchError: the graph was built with a tokenizer other than the model's.
    """
    settings = _settings_of(vllm_config)
    if settings.graph_path:
        load_layers(settings.graph_path, _fingerprint_of(vllm_config.model_config.tokenizer))


def _settings_of(vllm_config: Any) -> EngineSettings:
    if vllm_config.speculative_config.num_speculative_tokens > _MOST_TOKENS:
        raise ConfigError(
            f"{{field}}: vLLM verifies drafts of at most {_MOST_TOKENS} tokens",
            fix="try 8",
            field="--speculative-config num_speculative_tokens",
        )
    given = dict(vllm_config.additional_config or {})
    if _SECTION not in given:
        for name in given:
            if name in EngineSettings.model_fields or question(name, [_SECTION]):
                raise ConfigError(
                    f"{{field}} has {name}, but our settings belong under {_SECTION!r}",
                    fix=f'give {{"{_SECTION}": {{"graph_path": "graph.pkl"}}}}',
                    field="--additional-config",
                )
    return load_engine_settings(given.get(_SECTION, {}), f"--additional-config {_SECTION!r}")


@lru_cache(maxsize=1)
def _fingerprint_of(tokenizer: str) -> Fingerprint:
    """Return the fingerprint of a tokenizer, from a cache after the first call.

    Computing the fingerprint of gpt-oss's tokenizer takes a second, and vLLM may check its configuration repeatedly.
    """
    return CorpusTokenizer.load(tokenizer, special_tokens="parse").fingerprint


def open_for_worker(vllm_config: Any, *, has_fixed_width: bool = False) -> EngineSessions | None:
    """Open the drafter for a vLLM worker, with the settings under ``speculant`` in ``--additional-config``.

    Args:
        vllm_config: vLLM's ``VllmConfig``.
        has_fixed_width: whether a pass verifies the same number of tokens for drafts of any length.

    Returns:
        The object that drafts for the worker's batch; None in workers whose drafts vLLM does not use. In a
        tensor-parallel group, vLLM uses only the drafts of rank 0.

    Raises:
        ConfigError: a setting is wrong, or the tokenizer can't be read.
        GraphFileError: the graph can't be read.
        TokenizerMismatchError: the graph was built with a tokenizer other than the model's.
    """
    from vllm.distributed import get_tensor_model_parallel_rank, model_parallel_is_initialized

    if model_parallel_is_initialized() and get_tensor_model_parallel_rank() > 0:
        return None
    log_to_stderr("INFO")
    sessions = open_sessions(
        _settings_of(vllm_config),
        _fingerprint_of(vllm_config.model_config.tokenizer),
        most_drafted=int(vllm_config.speculative_config.num_speculative_tokens),
        vocabulary_size=int(vllm_config.model_config.get_vocab_size()),
        has_fixed_width=has_fixed_width,
    )
    atexit.register(sessions.close)  # vLLM does not call close() at exit
    return sessions
