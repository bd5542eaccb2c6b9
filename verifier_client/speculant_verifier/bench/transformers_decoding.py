"""Decoding with transformers' own ``generate``: plainly, with prompt lookup, and with an assistant model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.bench.cases import Case
from speculant_verifier.bench.forcing import forced_outputs
from speculant_verifier.bench.tally import Decoded, DecodedRow
from speculant_verifier.model import TargetModel

PROMPT_LOOKUP_TOKENS = 10
"""``prompt_lookup_num_tokens``: the value of transformers' documentation."""


class _Arrivals(BaseStreamer):
    """Notes when tokens come, of all rows at once."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seen: list[tuple[float, int]] = []
        self._has_prompt = False

    def put(self, value: Tensor) -> None:
        """Take the prompt first, then what every step brings."""
        if self._has_prompt:
            self.seen.append((time.perf_counter() - self.started, value.shape[-1] if value.ndim > 1 else 1))
        self._has_prompt = True

    def end(self) -> None:
        """Do nothing."""


def decode_transformers(
    target: TargetModel, cases: Sequence[Case], config: GenerationConfig, more: dict[str, Any] | None = None
) -> Decoded:
    """Decode requests as one batch, padded on the left, until the longest is done.

    The model is the very same, with the same attention, and forced outputs are forced upon it, too.

    Args:
        target: the model.
        cases: the requests; one only where ``more`` asks for speculation.
        config: how tokens are chosen.
        more: further arguments of ``generate``.
    """
    longest = max(len(case.prompt) for case in cases)
    padded = [[0] * (longest - len(case.prompt)) + list(case.prompt) for case in cases]
    shown = [[0] * (longest - len(case.prompt)) + [1] * len(case.prompt) for case in cases]
    is_forced = cases[0].forced is not None
    end_token_ids = [] if is_forced or config.ignore_end_tokens else sorted(target.end_token_ids)
    with _end_tokens(target.model, end_token_ids), forced_outputs(target.model, cases):
        torch.manual_seed(config.seed)
        arrivals = _Arrivals()
        generate: Any = target.model.generate
        output = generate(
            torch.tensor(padded, device=target.device),
            attention_mask=torch.tensor(shown, device=target.device),
            max_new_tokens=max(case.max_tokens for case in cases),
            streamer=arrivals,
            **_choices(config),
            **(more or {}),
        )
        total_s = time.perf_counter() - arrivals.started
    rows = [
        _row(token_ids, case, arrivals.seen, end_token_ids)
        for token_ids, case in zip(output[:, longest:].tolist(), cases, strict=True)
    ]
    return Decoded(rows, total_s)


def load_assistant(path: str, target: TargetModel) -> PreTrainedModel:
    """Load an assistant model, in the number type and at the place of the target.

    Raises:
        ConfigError: it can't be loaded, or has another vocabulary.
    """
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=target.model.dtype, device_map={"": target.device}
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"--assistant: can't load a model from {path}; give a folder with a checkpoint") from error
    if model.config.get_text_config().vocab_size != target.vocabulary_size:
        raise ConfigError(f"--assistant: {path} has another vocabulary than '{target.name}'; choose one that shares it")
    model.train(False)
    return model


def _row(
    token_ids: list[int], case: Case, seen: Sequence[tuple[float, int]], end_token_ids: Sequence[int]
) -> DecodedRow:
    """Cut a row of a batch to what belongs to its request."""
    kept = token_ids[: case.max_tokens]
    ends = [place for place, token in enumerate(kept) if token in end_token_ids]
    row = DecodedRow(token_ids=kept[: ends[0] + 1] if ends else kept)
    for seconds, number in seen:
        room = len(row.token_ids) - sum(taken for _, taken in row.arrivals)
        if room > 0:
            row.arrivals.append((seconds, min(number, room)))
    row.num_steps = len(row.arrivals)
    return row


def _choices(config: GenerationConfig) -> dict[str, Any]:
    if config.temperature == 0.0:
        return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    return {
        "do_sample": True,
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "min_p": config.min_p or None,
    }


@contextmanager
def _end_tokens(model: PreTrainedModel, end_token_ids: Sequence[int]) -> Iterator[None]:
    """Set the model's own end tokens, which ``generate`` takes where none are given, for a block."""
    settings: Any = model.generation_config
    before = settings.eos_token_id, settings.pad_token_id
    settings.eos_token_id = list(end_token_ids) or None
    settings.pad_token_id = 0
    try:
        yield
    finally:
        settings.eos_token_id, settings.pad_token_id = before
