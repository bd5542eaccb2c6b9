"""Decoding with transformers' own ``generate``: plainly, with prompt lookup, and with an assistant model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError
from speculant_graph.types import TokenId
from speculant_verifier.bench.statistics import Decoded, DecodedRow
from speculant_verifier.bench.workload import BenchRequest
from speculant_verifier.model import TargetModel

_LOGIT = 1e4
"""Above all logits of a model, also after temperatures and penalties; finite in every number type."""


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
    target: TargetModel, requests: Sequence[BenchRequest], config: GenerationConfig, **more: Any
) -> Decoded:
    """Decode requests as one batch, padded on the left, until the longest is done.

    The model is the very same, with the same attention, and records are forced upon it, too.

    Args:
        target: the model.
        requests: one only where ``more`` asks for speculation.
        config: how tokens are chosen.
        more: further arguments of ``generate``.
    """
    longest = max(len(request.prompt) for request in requests)
    padded = [[0] * (longest - len(request.prompt)) + list(request.prompt) for request in requests]
    shown = [[0] * (longest - len(request.prompt)) + [1] * len(request.prompt) for request in requests]
    is_forced = requests[0].forced is not None
    end_token_ids = [] if is_forced or config.ignore_end_tokens else sorted(target.end_token_ids)
    choices: dict[str, Any] = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    if config.temperature:
        choices = {
            "do_sample": True, "temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p,
            "min_p": config.min_p or None,
        }  # fmt: skip
    forcing = _forced_outputs(target.model, requests) if is_forced else nullcontext()
    with _end_tokens(target.model, end_token_ids), forcing:
        torch.manual_seed(config.seed)
        arrivals = _Arrivals()
        generate: Any = target.model.generate
        output = generate(
            torch.tensor(padded, device=target.device),
            attention_mask=torch.tensor(shown, device=target.device),
            max_new_tokens=max(request.max_tokens for request in requests),
            streamer=arrivals,
            **choices,
            **more,
        )
        total_s = time.perf_counter() - arrivals.started
    rows = [
        _row(token_ids, request, arrivals.seen, end_token_ids)
        for token_ids, request in zip(output[:, longest:].tolist(), requests, strict=True)
    ]
    return Decoded(rows, total_s)


def load_assistant(path: str, target: TargetModel) -> PreTrainedModel:
    """Load an assistant model, in the number type and on the device of the target.

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
    token_ids: list[int], request: BenchRequest, seen: Sequence[tuple[float, int]], end_token_ids: Sequence[int]
) -> DecodedRow:
    """Cut a row of a batch to what belongs to its request."""
    kept = token_ids[: request.max_tokens]
    ends = [index for index, token in enumerate(kept) if token in end_token_ids]
    row = DecodedRow(token_ids=kept[: ends[0] + 1] if ends else kept)
    for seconds, count in seen:
        space = len(row.token_ids) - sum(taken for _, taken in row.arrivals)
        if space > 0:
            row.arrivals.append((seconds, min(count, space)))
    row.num_steps = len(row.arrivals)
    return row


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


@contextmanager
def _forced_outputs(model: nn.Module, requests: Sequence[BenchRequest]) -> Iterator[None]:
    """Make transformers' loops write records: after every prefix of a request its next token gets the highest logit.

    It changes the logits where the model returns them. A logits processor would do the same, but loops with processors
    copy logits that they leave alone otherwise, and assistants would be given it, too.
    """

    def force(_: nn.Module, __: tuple[Any, ...], given: dict[str, Any], output: Any) -> None:
        logits: Tensor = output.logits
        positions: Tensor = given["position_ids"]
        last = positions[:, -logits.shape[1] :].tolist()
        forced: list[tuple[int, int, TokenId]] = []
        for row, request in enumerate(requests):
            for node, position in enumerate(last[row if len(last) > 1 else 0]):
                offset = position + 1 - len(request.prompt)
                if request.forced is not None and 0 <= offset < len(request.forced):
                    forced.append((row, node, request.forced[offset]))
        if forced:
            rows, nodes, tokens = zip(*forced, strict=True)
            logits[list(rows), list(nodes), list(tokens)] = _LOGIT

    handle = model.register_forward_hook(force, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
