"""Tokens without a forward pass: the target's logits after prefixes that it has seen before (SpecExec's mode).

A sequence whose prefix is known goes on at once. Its tokens stay pending, and the next pass, which the first unknown
prefix needs, reads them with the rest. A request with ``speculation = "off"`` takes no part: as a baseline it has a
pass for every token, and none of its time goes into copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from speculant_graph.types import Draft
from speculant_verifier.engine.sequence import ActiveSequence
from speculant_verifier.speculation.target_cache import PrefixKey, TargetCache, TargetCacheStatistics


class LogitsCache:
    """The logits cache of one engine."""

    reducible = "rows of the target cache"

    def __init__(self, model: str, num_bytes: int) -> None:
        """Take the model's identity and the bound of memory; 0 remembers nothing."""
        self._model, self._num_bytes = model, num_bytes
        self._cache = TargetCache(num_bytes) if num_bytes else None

    @property
    def statistics(self) -> TargetCacheStatistics:
        """What was asked for and found."""
        return self._cache.statistics if self._cache is not None else TargetCacheStatistics()

    def reduce(self) -> int | None:
        """Forget all, and remember nothing for now."""
        num_bytes = self.statistics.num_bytes
        if self._cache is None or not num_bytes:
            return None
        self._cache.clear(0)
        return num_bytes

    def restore(self) -> None:
        """Remember again."""
        if self._cache is not None:
            self._cache.clear(self._num_bytes)

    def logits(self, sequence: ActiveSequence) -> Tensor | None:
        """Return the raw logits after a sequence, shape ``[V]``, if they are known."""
        if self._cache is None or sequence.config.speculation == "off":
            return None
        return self._cache.get(self._key(sequence))

    def keep(self, sequence: ActiveSequence, draft: Draft, path: Sequence[int], logits: Tensor) -> None:
        """Keep the logits of a pass, before its tokens become part of the sequence.

        Args:
            sequence: as it was before the pass.
            draft: what was verified behind it.
            path: accepted nodes.
            logits: after the sequence and after every node, shape ``[1 + nodes, V]``.
        """
        if self._cache is not None and sequence.config.speculation != "off":
            keys = self._key(sequence).of_nodes(draft)
            self._cache.put_many(keys, logits, first=[0, *(node + 1 for node in path)])

    def _key(self, sequence: ActiveSequence) -> PrefixKey:
        """Return the sequence's key; that of its beginning is kept with it."""
        known = sequence.prefix_key or PrefixKey.of(f"{self._model}\0{sequence.tenant}")
        sequence.prefix_key = known.extended(sequence.token_ids[sequence.num_keyed :])
        sequence.num_keyed = len(sequence.token_ids)
        return sequence.prefix_key
