"""Caches the target's logits by prefix, to emit tokens without a forward pass (SpecExec, arXiv 2406.02532).

A forward pass over a draft tree computes the target's logits after every node, and most nodes are rejected. The prefix
of a rejected node may recur in a later step, in another sample of the prompt, or in a repeated request. When a prefix
recurs, its logits come from the cache, and the sequence continues without a forward pass. Tokens emitted from the cache
stay pending until a prefix is not in the cache. The forward pass over the first uncached prefix also reads the pending
tokens.

The cache holds raw logits on their device, because processors, temperature and seed differ between requests. Requests
with ``speculation = "off"`` do not use the cache, because they are a baseline with one pass per token.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from loguru import logger
from torch import Tensor

from speculant_graph.types import Draft, TokenId

if TYPE_CHECKING:
    from speculant_verifier.engine.sequence import ActiveSequence

_DIGEST_BYTES = 16
_TOKEN_BYTES = 8


class LogitsCache:
    """LRU cache of raw logits by prefix. One engine owns the cache, which is not thread-safe."""

    def __init__(self, model: str, num_bytes: int) -> None:
        """Create an empty cache, which allocates memory row by row.

        Args:
            model: identifies the model and all else that determines its logits.
            num_bytes: maximum total size of all rows, in bytes; if a single row is larger, nothing is kept. In
                addition, the key of each row takes 200 bytes.
        """
        self._model = model
        self.bound = num_bytes
        """Maximum total size of the cached rows of logits, in bytes. If the maximum size is 0, no row is kept, and
        callers can skip lookups."""
        self._rows: OrderedDict[bytes, Tensor] = OrderedDict()  # least recently used first
        self._row_bytes = 0
        self.hits = self.evicted = 0
        """Number of successful lookups, each of which saves a forward pass, and number of evicted rows."""

    def __len__(self) -> int:
        """Return the number of cached rows."""
        return len(self._rows)

    def __contains__(self, key: bytes) -> bool:
        """Return whether a prefix is cached; this check does not count as a use of the row."""
        return key in self._rows

    @property
    def num_bytes(self) -> int:
        """Total size of the cached rows, in bytes."""
        return len(self._rows) * self._row_bytes

    def clear(self) -> None:
        """Remove all rows."""
        self._rows.clear()

    def logits(self, sequence: ActiveSequence) -> Tensor | None:
        """Return the raw logits after a sequence, shape ``[V]``, or None if they are not cached."""
        return self.get(self._key(sequence)) if self._takes(sequence) else None

    def keep(self, sequence: ActiveSequence, draft: Draft, path: Sequence[int], logits: Tensor) -> None:
        """Cache the logits of a pass; call this before the pass's tokens are appended to the sequence.

        Args:
            sequence: the sequence before the pass.
            draft: the draft that the pass verified.
            path: accepted nodes, whose logits are evicted last.
            logits: logits after the sequence and after every node, shape ``[1 + nodes, V]``; further rows are ignored.
        """
        if self._takes(sequence):
            keys = keys_of_nodes(self._key(sequence), draft)
            order = dict.fromkeys((0, *(node + 1 for node in path), *range(len(keys))))
            self.put_many([keys[index] for index in order], [logits[index] for index in order])

    def get(self, key: bytes) -> Tensor | None:
        """Return a copy of the logits after a prefix, shape ``[V]``, or None if they are not cached.

        The copy is needed because the row may be evicted while the caller uses it. Copying a row takes a thousandth of
        the time of the forward pass that it saves.
        """
        if key not in self._rows:
            return None
        self._rows.move_to_end(key)
        self.hits += 1
        return self._rows[key].clone()

    def put_many(self, keys: Sequence[bytes], rows: Sequence[Tensor]) -> None:
        """Keep copies of the logits after prefixes. A prefix that is already cached keeps its row and counts as used.

        Args:
            keys: keys of the prefixes, the most useful first. The first keys are evicted last, and the last keys are
                dropped if not all fit. If a key occurs more than once, only its first row is kept.
            rows: one row per key, shape ``[V]``; V, dtype and device are the same in every call.
        """
        self._row_bytes = rows[0].nbytes if rows else self._row_bytes
        capacity = self.bound // max(1, self._row_bytes)
        new: dict[bytes, Tensor] = {}
        for key, row in zip(keys, rows, strict=True):
            if len(new) < capacity:
                new.setdefault(key, row)
        for key in new.keys() & self._rows.keys():
            self._rows.move_to_end(key)  # so that none of them is evicted
        try:
            for key in reversed(new):
                if key not in self._rows:
                    if len(self._rows) == capacity:
                        self._rows.popitem(last=False)
                        self.evicted += 1
                    self._rows[key] = new[key].detach().clone()
                self._rows.move_to_end(key)
        except RuntimeError as error:  # decoding continues with a smaller cache
            self.bound = self.num_bytes // 2
            logger.warning("no memory for target_cache: at most {} bytes from now on ({})", self.bound, error)
            self.clear()

    def _takes(self, sequence: ActiveSequence) -> bool:
        return bool(self.bound) and sequence.config.speculation != "off"

    def _key(self, sequence: ActiveSequence) -> bytes:
        """Return the sequence's key, extended from the stored key of its first ``num_keyed`` tokens."""
        known = sequence.prefix_key or key_of(f"{self._model}\0{sequence.tenant}")
        sequence.prefix_key = extended(known, sequence.token_ids[sequence.num_keyed :])
        sequence.num_keyed = len(sequence.token_ids)
        return sequence.prefix_key


def key_of(model: str, token_ids: Iterable[TokenId] = ()) -> bytes:
    """Return a 128-bit digest of a model's name and a token sequence; collisions do not occur in practice.

    A sequence's key is computed from the key of all but its last token, in about half a microsecond.
    """
    return extended(hashlib.blake2b(model.encode(), digest_size=_DIGEST_BYTES).digest(), token_ids)


def extended(key: bytes, token_ids: Iterable[TokenId]) -> bytes:
    """Return a sequence's key after tokens are appended; appending them in several calls gives the same key."""
    for token_id in token_ids:
        tail = token_id.to_bytes(_TOKEN_BYTES, "little")
        key = hashlib.blake2b(key + tail, digest_size=_DIGEST_BYTES).digest()
    return key


def keys_of_nodes(key: bytes, draft: Draft) -> list[bytes]:
    """Return the keys of the root (``key``) and of every node of a draft: ``1 + len(draft)`` keys."""
    keys = [key]
    for parent, token_id in zip(draft.parents, draft.token_ids, strict=True):
        keys.append(extended(keys[parent], (token_id,)))
    return keys
