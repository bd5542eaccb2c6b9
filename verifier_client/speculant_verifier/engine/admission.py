"""Which requests may join: those that fit into the model, the batch and the memory for keys and values.

Where memory ends all the same, parts of the engine are reduced, in order, and restored when there is enough again.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Protocol

from loguru import logger

from speculant_graph.config import VerifierConfig
from speculant_graph.errors import GenerationError, GenerationRequestError
from speculant_verifier.engine.prompts import PrefixCache
from speculant_verifier.engine.sequence import MOST_PENDING, ActiveSequence, Request
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel


class Admission:
    """Gives rows of the cache to sequences; all rows, as long as the longest may get, stay below the bound."""

    reducible = "requests at once"

    def __init__(self, target: TargetModel, config: VerifierConfig, most_nodes: int, prefill_chunk: int) -> None:
        """Take the bounds.

        Args:
            target: the model, whose longest context bounds every row.
            config: rows and tokens.
            most_nodes: nodes of a draft, which need slots while they are verified.
            prefill_chunk: most tokens of prompts in a pass.
        """
        self._target = target
        self._num_rows = self._most_rows = config.max_batch_size
        self._widest_step = most_nodes + MOST_PENDING
        plan = None if target.offload is None else target.offload.plan
        # Experts compute with several copies of a prompt's tokens, and memory is short where they are streamed.
        most_read = plan.most_nodes if plan is not None and plan.unit == "expert" else prefill_chunk
        self.prefill_chunk = min(prefill_chunk, most_read)
        """Most tokens of prompts in a pass."""
        self.cache = target.new_cache(0, widest_pass=max(self.prefill_chunk, self._widest_step))
        """The cache whose rows are given out: those in front are in use."""
        most = config.max_batch_size * self.cache.slots_needed(1, target.max_length + self._widest_step)
        if plan is not None:
            most = min(most, plan.kv_tokens)
        self.max_tokens = self.cache.max_slots = config.max_kv_tokens or most
        """Bound of running sequences times the longest that any of them may become, in tokens."""
        # Where weights are streamed, memory is worth more to them, unless the settings differ.
        is_asked = plan is None or "prefix_cache" in config.model_fields_set
        self.prefixes = PrefixCache(self.cache, config.prefix_cache if is_asked else 0)
        """What earlier sequences have read."""

    def reserved_tokens(self, running: Sequence[ActiveSequence]) -> int:
        """Return what of the bound is taken by those that run."""
        return self._slots(len(running), [each.request for each in running]) if running else 0

    def check(self, request: Request) -> None:
        """Refuse a request that could never run.

        Raises:
            GenerationRequestError: it is empty or too long, or holds ids that the model does not have.
        """
        length, longest = len(request.prompt), self._target.max_length
        if not length:
            raise GenerationRequestError("the prompt is empty; give at least one token")
        if length >= longest:
            raise GenerationRequestError(
                f"the prompt has {length} tokens, but the model takes at most {longest - 1}; shorten it"
            )
        if not all(0 <= token < self._target.vocabulary_size for token in request.prompt):
            raise GenerationRequestError(
                f"the prompt holds token ids outside 0..{self._target.vocabulary_size - 1}; "
                "use the model's own tokenizer"
            )
        if self._slots(1, [request]) > self.max_tokens:
            raise GenerationRequestError(
                f"prompt and output may take {self._slots(1, [request])} tokens, but there is memory for "
                f"{self.max_tokens}; lower max_tokens, or raise verifier.max_kv_tokens"
            )

    def most_output(self, prompt_length: int) -> int:
        """Return the longest output that a prompt may have: the rest of the context, or of the memory; at least 1."""
        longest = self._target.max_length
        if self.cache.slots_needed(1, longest + self._widest_step) > self.max_tokens:
            fitting = range(prompt_length + 1, longest + 1)
            count = bisect(
                fitting, self.max_tokens, key=lambda length: self.cache.slots_needed(1, length + self._widest_step)
            )
            longest = prompt_length + count
        return max(1, longest - prompt_length)

    def reduce(self) -> int | None:
        """Let requests wait while one is running."""
        if self._num_rows == 1:
            return None
        self._num_rows = 1
        return 0

    def restore(self) -> None:
        """Admit as many as before."""
        self._num_rows = self._most_rows

    def admit(self, sequence: ActiveSequence, running: Sequence[ActiveSequence], num_waiting: int) -> bool:
        """Give a row to a sequence if it can join those that run.

        Args:
            sequence: gets the row.
            running: all that have a row.
            num_waiting: requests that would like to join, this one included.

        Returns:
            Whether it can.
        """
        count = len(running) + 1
        requests = [sequence.request, *(each.request for each in running)]
        if count > self._num_rows or self._slots(count, requests) > self.max_tokens:
            return False
        rows = max(self.cache.num_rows, min(self._num_rows, len(running) + num_waiting))
        if self._slots(rows, requests) > self.max_tokens:
            rows = count
        if rows != self.cache.num_rows:
            step = self.cache.slots_needed(1, 1)
            self.cache.resize(rows, min(self.cache.capacity, self.max_tokens // rows // step * step))
        sequence.row = len(running)
        self.cache.clear(sequence.row)
        self.prefixes.begin(sequence)
        return True

    def release(self, sequence: ActiveSequence, running: Sequence[ActiveSequence]) -> None:
        """Take a row back; the last one moves to its index, as rows that are neighbours are read without a copy."""
        if not sequence.error:
            self.prefixes.keep(sequence)
        last = max((each for each in running if each.row > sequence.row), key=lambda each: each.row, default=None)
        if last is None:
            self.cache.clear(sequence.row)
        else:
            self.cache.move_row(last.row, sequence.row)
            last.row = sequence.row
        sequence.row = -1

    def _slots(self, num_rows: int, requests: Sequence[Request]) -> int:
        return self.cache.slots_needed(num_rows, max(map(self._need, requests)))

    def _need(self, request: Request) -> int:
        longest = min(len(request.prompt) + request.config.max_tokens, self._target.max_length)
        return longest + self._widest_step  # of another row, whose pending tokens and draft all rows are padded to


_PAUSE_S = 0.5
"""Between looks at the memory."""
_CALM_S = 20.0
"""Nothing is taken back sooner after the last change."""
_SLACK = 1.25
"""So many times what it takes must be free before something is taken back."""


class Cache(Protocol):
    """What is kept for later alone."""

    @property
    def num_bytes(self) -> int:
        """Memory of it."""

    def clear(self) -> None:
        """Forget all."""


class Reducible(Protocol):
    """A part of an engine that can do with less memory."""

    reducible: str
    """What of it is reduced, for messages and metrics."""

    def reduce(self) -> int | None:
        """Give up some; bytes that were freed, about, or None if there is no more to give up."""

    def restore(self) -> None:
        """Take back what was given up last."""


class MemoryPressure:
    """Clears caches, then reduces parts of an engine one after the other, and restores the last one first."""

    def __init__(
        self,
        target: TargetModel,
        caches: Sequence[Cache],
        parts: Sequence[Reducible],
        spare: Callable[[], int | None],
        totals: EngineTotals,
    ) -> None:
        """Begin with all of them whole.

        Args:
            target: its device's allocator gives back what it keeps.
            caches: cleared before anything is reduced; they fill again.
            parts: in the order in which they are reduced.
            spare: bytes that are free beyond what should be; negative where memory is short, None if unknown.
            totals: what was reduced is counted there.
        """
        self._target, self._caches, self._parts, self._spare = target, caches, parts, spare
        self._totals = totals
        totals.num_reductions.update((part.reducible, 0) for part in parts)
        self._reduced: list[tuple[Reducible, int]] = []
        self._due_s = self._calm_s = 0.0

    def look(self) -> None:
        """Reduce or restore a part, if it is time to; between steps."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _PAUSE_S
        try:
            self._adapt(now_s)
        except GenerationError as error:  # weights that can't be read; the requests whose passes need them fail
            logger.warning("what is kept in memory can't be changed: {}", error)

    def _adapt(self, now_s: float) -> None:
        spare = self._spare()
        for free in (self._target.free_memory, self._clear, self._reduce):
            if spare is None or spare >= 0:
                break
            free()
            spare = self._spare()
        if self._reduced and now_s >= self._calm_s:
            part, num_bytes = self._reduced[-1]
            if spare is None or spare > _SLACK * num_bytes:
                self._reduced.pop()
                self._calm_s = now_s + _CALM_S
                part.restore()
                self._totals.num_reductions_in_force -= 1
                logger.info("there is memory again: more {}", part.reducible)

    def relieve(self) -> bool:
        """Clear the caches, or reduce the first part that has something left; False if there is nothing to give up."""
        self._target.free_memory()
        return self._clear() or self._reduce()

    def _clear(self) -> bool:
        if not any(cache.num_bytes for cache in self._caches):
            return False
        for cache in self._caches:
            cache.clear()
        self._target.free_memory()
        return True

    def _reduce(self) -> bool:
        for part in self._parts:
            if (num_bytes := part.reduce()) is not None:
                logger.warning(
                    "memory is short, of the machine, its container or verifier.memory_budget: fewer {} until "
                    "there is more; see docs/offloading.md",
                    part.reducible,
                )
                self._reduced.append((part, num_bytes))
                self._totals.num_reductions[part.reducible] += 1
                self._totals.num_reductions_in_force += 1
                self._calm_s = time.monotonic() + _CALM_S
                return True
        return False
