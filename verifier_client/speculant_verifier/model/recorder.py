"""Records passes as CUDA graphs, so that one launch replays a pass that otherwise needs thousands of kernel launches.

A pass of gpt-oss-20b launches about 2,100 kernels. In a pass over few tokens, launching every kernel separately takes
several times as long as running the kernels on the GPU. A CUDA graph has fixed shapes and addresses. Passes are
therefore padded to a few shapes (:class:`~speculant_verifier.cache.CacheLayout`), and changing inputs are copied into
the graph's tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from loguru import logger
from torch import Tensor

from speculant_verifier.cache import ForwardPlan, SlotCache
from speculant_verifier.cache.pass_layout import Placement

NUM_UNSTEADY = 2
"""Maximum number of passes of one shape that are slower than its later passes. The very first pass of the model runs
without a recording, and one pass of each shape is recorded."""
_MOST_RECORDINGS = 96
"""Maximum number of recordings of one cache; beyond it, the least recently used recording is dropped."""

Compute = Callable[[Tensor, ForwardPlan, SlotCache], Tensor]
"""Function that runs a pass of token ids ``[n, T]`` with a plan and a cache, and returns logits ``[n, T, V]``."""


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    token_ids: Tensor
    plan: ForwardPlan
    """Plan with the tensors that the CUDA graph reads, in addition to the token ids."""
    output: Tensor


class PassRecorder:
    """Runs passes by replaying CUDA graphs, and records each new shape of pass. Not thread-safe."""

    def __init__(self, compute: Compute) -> None:
        """Start without recordings.

        Args:
            compute: runs a pass.
        """
        self._compute = compute
        self._pool: Any = None
        self._output: Tensor | None = None
        """Output buffer that all recordings share, because only one of them runs at a time. The buffer is None before
        the first pass."""
        self._vocabulary_size = 0
        self._is_usable = True
        self.is_steady = False
        """Whether the latest pass was as fast as later passes of the same shape will be."""

    def run(self, token_ids: Tensor, plan: ForwardPlan, cache: SlotCache) -> Tensor:
        """Run the pass that the cache has just planned.

        Returns:
            Logits ``[n, T, V]``, which later passes do not overwrite.
        """
        blocks = [each.block for each in (plan.full_placement, plan.sliding_placement) if each is not None]
        self.is_steady = not self._is_usable or not cache.is_empty
        if not self._is_usable or None in blocks or cache.is_empty:
            return self._compute(token_ids, plan, cache)
        if self._output is None:  # the first pass initialises libraries, which can't be recorded
            logits = self._compute(token_ids, plan, cache)
            self.is_steady, self._output, self._vocabulary_size = False, logits.new_empty(0), logits.shape[-1]
            return logits
        inputs = _inputs(token_ids, plan)
        key = (str(blocks), *(tensor.shape for tensor in inputs))
        recording: _Recording | None = cache.recordings.pop(key, None)
        self.is_steady = recording is not None
        if recording is None:
            try:
                recording = self._record(token_ids, plan, cache, self._output)
            except RuntimeError as error:
                self._is_usable = False
                cache.recordings.clear()
                reason = str(error).strip().splitlines()[0]
                logger.warning("passes can't be recorded as CUDA graphs and take longer ({})", reason)
                cache.place(plan)
                return self._compute(token_ids, plan, cache)
        cache.recordings[key] = recording
        for target, source in zip(_inputs(recording.token_ids, recording.plan), inputs, strict=True):
            target.copy_(source, non_blocking=True)
        recording.graph.replay()
        if len(cache.recordings) > _MOST_RECORDINGS:
            del cache.recordings[next(iter(cache.recordings))]
        return recording.output.clone()

    def _record(self, token_ids: Tensor, plan: ForwardPlan, cache: SlotCache, space: Tensor) -> _Recording:
        if self._pool is None:
            # A memory pool is freed with its last graph if only its handle refers to it, and recording into it then
            # fails.
            self._pool = torch.cuda.MemPool()
        shape = (*token_ids.shape, self._vocabulary_size)
        size = math.prod(shape)
        if space.numel() < size:
            self._output = space = space.new_empty(size)
        output = space[:size].view(shape)
        token_ids = token_ids.clone()
        plan = ForwardPlan(
            position_ids=plan.position_ids.clone(),
            full=None if plan.full is None else plan.full.clone(),
            sliding=None if plan.sliding is None else plan.sliding.clone(),
            full_placement=_fixed(plan.full_placement),
            sliding_placement=_fixed(plan.sliding_placement),
        )
        cache.place(plan)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool.id, capture_error_mode="thread_local"):
            output.copy_(self._compute(token_ids, plan, cache))
        return _Recording(graph, token_ids, plan, output)


def _inputs(token_ids: Tensor, plan: ForwardPlan) -> tuple[Tensor, ...]:
    """Return the inputs that differ between passes of the same shape."""
    placements = plan.full_placement, plan.sliding_placement
    slots = [None if each is None else each.slots for each in placements]
    tensors = token_ids, plan.position_ids, plan.full, plan.sliding, *slots
    return tuple(tensor for tensor in tensors if tensor is not None)


def _fixed(placement: Placement | None) -> Placement | None:
    """Return a copy of a placement whose slots can be overwritten before every replay."""
    return None if placement is None else replace(placement, slots=placement.slots.clone(), run=None)
