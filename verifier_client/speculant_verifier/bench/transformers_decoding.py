"""Decoding with transformers' own ``generate``: plain, and with prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation.streamers import BaseStreamer

from speculant_graph.config import GenerationConfig
from speculant_verifier.bench.decoding import Decoded, DecodedRow
from speculant_verifier.bench.workload import BenchRequest
from speculant_verifier.model import TargetModel

_LOGIT = 1e4
"""Logit larger than all logits of a model, even after temperature and penalties, but finite in every dtype."""


class _Arrivals(BaseStreamer):
    """Records when tokens arrive."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seen: list[tuple[float, int]] = []
        self._has_prompt = False

    def put(self, value: Tensor) -> None:
        """Receive the prompt in the first call, then the tokens of each step."""
        if self._has_prompt:
            self.seen.append((time.perf_counter() - self.started, value.numel()))
        self._has_prompt = True

    def end(self) -> None:
        """Do nothing."""


def decode_transformers(
    target: TargetModel, requests: Sequence[BenchRequest], config: GenerationConfig, **more: Any
) -> Decoded:
    """Decode one request with transformers' ``generate``.

    Transformers uses the same model object and attention as this project's engine. If a request has a recorded output,
    ``generate`` is forced to emit it.

    Args:
        target: the model.
        requests: a single request, because transformers' speculative decoding supports no more.
        config: sampling settings.
        more: further arguments of ``generate``.
    """
    [request] = requests
    ends = [] if request.teacher_forced is not None or config.ignore_end_tokens else sorted(target.end_token_ids)
    choices: dict[str, Any] = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    if config.temperature:
        choices = {
            "do_sample": True, "temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p,
            "min_p": config.min_p or None,
        }  # fmt: skip
    prompt = torch.tensor([request.prompt], device=target.device)
    settings: Any = target.model.generation_config
    before = settings.eos_token_id, settings.pad_token_id
    settings.eos_token_id, settings.pad_token_id = ends or None, 0  # by default generate uses the model's own
    try:
        with _forced_output(target.model, request):
            torch.manual_seed(config.seed)
            arrivals = _Arrivals()
            generate: Any = target.model.generate
            output = generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=request.max_tokens,
                streamer=arrivals,
                **choices,
                **more,
            )
            total_s = time.perf_counter() - arrivals.started
    finally:
        settings.eos_token_id, settings.pad_token_id = before
    token_ids = output[0, len(request.prompt) :].tolist()[: request.max_tokens]
    ended = [index for index, token_id in enumerate(token_ids, start=1) if token_id in ends]
    token_ids = token_ids[: ended[0]] if ended else token_ids
    return Decoded([DecodedRow(token_ids, arrivals.seen, len(arrivals.seen))], total_s)


@contextmanager
def _forced_output(model: nn.Module, request: BenchRequest) -> Iterator[None]:
    """Make transformers emit a recorded output by giving its next token the highest logit at every position.

    This function changes the logits that the model returns. A logits processor could also force the tokens, but would
    make transformers copy the logits.
    """

    def force(_: nn.Module, __: tuple[Any, ...], given: dict[str, Any], output: Any) -> None:
        logits: Tensor = output.logits
        for node, position in enumerate(given["position_ids"][0, -logits.shape[1] :].tolist()):
            offset = position + 1 - len(request.prompt)
            if request.teacher_forced is not None and 0 <= offset < len(request.teacher_forced):
                logits[0, node, request.teacher_forced[offset]] = _LOGIT

    handle = model.register_forward_hook(force, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
