"""Decides which requests may join the batch: they must fit the context, the batch and the KV cache's memory."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from speculant_graph.config import VerifierConfig
from speculant_graph.errors import GenerationRequestError
from speculant_verifier.engine.prompts import PrefixCache
from speculant_verifier.engine.sequence import MOST_PENDING, ActiveSequence, Request
from speculant_verifier.model import TargetModel


class Admission:
    """Assigns rows of the KV cache to sequences, and keeps the reserved tokens within ``max_tokens``."""

    degradable = "requests at once"

    def __init__(self, target: TargetModel, config: VerifierConfig, most_nodes: int, prefill_chunk: int) -> None:
        """Set the limits.

        Args:
            target: the model, whose context length bounds every row.
            config: limits of rows and tokens.
            most_nodes: maximum number of nodes in a draft; drafted nodes occupy cache slots during verification.
            prefill_chunk: maximum number of prompt tokens in a pass.
        """
        self._target = target
        self._num_rows = self._most_rows = config.max_batch_size
        self._widest_step = most_nodes + MOST_PENDING
        plan = None if target.offload is None else target.offload.plan
        # Experts need several copies of a prompt's tokens, and memory is short when experts are streamed.
        most_read = plan.most_nodes if plan is not None and plan.unit == "expert" else prefill_chunk
        self.prefill_chunk = min(prefill_chunk, most_read)
        """Maximum number of prompt tokens that one prefill pass reads."""
        self.cache = target.new_cache(0, widest_pass=max(self.prefill_chunk, self._widest_step))
        """KV cache of the batch; rows in use precede free rows."""
        most = config.max_batch_size * self.cache.slots_needed(1, target.max_length + self._widest_step)
        if plan is not None:
            most = min(most, plan.kv_tokens)
        self.max_tokens = self.cache.max_slots = config.max_kv_tokens or most
        """Maximum number of KV cache tokens that a batch may reserve. A batch of n sequences reserves n times the
        greatest length that any of its sequences may reach."""
        # Streamed weights profit more from the memory than a prefix cache, unless the settings ask for one.
        is_asked = plan is None or "prefix_cache" in config.model_fields_set
        self.prefixes = PrefixCache(self.cache, config.prefix_cache if is_asked else 0)
        """Prefix cache with the keys and values of earlier sequences."""

    def reserved_tokens(self, running: Sequence[ActiveSequence]) -> int:
        """Return the number of tokens that the running sequences reserve in the KV cache."""
        return self._slots(len(running), [each.request for each in running]) if running else 0

    def check(self, request: Request) -> None:
        """Refuse a request that could never run.

        Raises:
            GenerationRequestError: the request is empty or too long, or has token ids outside the vocabulary.
        """
        length, longest = len(request.prompt), self._target.max_length
        if not length:
            raise GenerationRequestError("the {field} is empty", fix="give at least one token", field="prompt")
        if length >= longest:
            raise GenerationRequestError(
                f"the {{field}} has {length} tokens, but the model takes at most {longest - 1}",
                fix="shorten it",
                field="prompt",
            )
        if not all(0 <= token < self._target.vocabulary_size for token in request.prompt):
            raise GenerationRequestError(
                f"the {{field}} holds token ids outside 0..{self._target.vocabulary_size - 1}",
                fix="use the model's own tokenizer",
                field="prompt",
            )
        if self._slots(1, [request]) > self.max_tokens:
            raise GenerationRequestError(
                f"prompt and output may take {self._slots(1, [request])} tokens, but there is memory for "
                f"{self.max_tokens}",
                fix="lower {field}, or raise verifier.max_kv_tokens",
                field="max_tokens",
            )

    def most_output(self, prompt_length: int) -> int:
        """Return the maximum length of a prompt's output, limited by the context and by memory; at least 1."""
        longest = self._target.max_length
        if self.cache.slots_needed(1, longest + self._widest_step) > self.max_tokens:
            fitting = range(prompt_length + 1, longest + 1)
            count = bisect(
                fitting, self.max_tokens, key=lambda length: self.cache.slots_needed(1, length + self._widest_step)
            )
            longest = prompt_length + count
        return max(1, longest - prompt_length)

    def reduce(self) -> int | None:
        """Limit the batch to one request at a time; return None if this limit already applies."""
        if self._num_rows == 1:
            return None
        self._num_rows = 1
        return 0

    def restore(self) -> None:
        """Allow a full batch again after :meth:`reduce`."""
        self._num_rows = self._most_rows

    def admit(self, sequence: ActiveSequence, running: Sequence[ActiveSequence], num_waiting: int) -> bool:
        """Assign a row to a sequence if it can join the batch.

        Args:
            sequence: the first waiting sequence.
            running: all sequences with a row.
            num_waiting: number of waiting requests, including this one.

        Returns:
            Whether the sequence got a row.
        """
        count = len(running) + 1
        requests = [sequence.request, *(each.request for each in running)]
        if count > self._num_rows or self._slots(count, requests) > self.max_tokens:
            return False
        wanted = self.cache.layout.round_rows(len(running) + num_waiting)
        rows = max(self.cache.num_rows, min(self._num_rows, wanted))
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
        """Free a sequence's row and move the last row there, because adjacent rows are read without a copy."""
        if sequence.error is None:
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
        return longest + self._widest_step  # all rows are padded to the widest row's pending tokens and draft
