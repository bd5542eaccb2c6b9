"""Tokens without a forward pass: the target's logits after prefixes that it has seen (SpecExec, arXiv 2406.02532).

A forward pass over a draft tree computes the target's logits after every node, and most of those nodes are rejected. If
one of their prefixes comes again, in a later step, in another sample of the prompt or in a request that is repeated,
its logits are looked up and the sequence continues at once. Its tokens stay pending, and the next pass, which the first
unknown prefix needs, reads them with the rest.

Logits are kept as the model gave them, on their device: processors, temperature and seed belong to a request. A request
with ``speculation = "off"`` takes no part: as a baseline it has a pass for every token.
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
    """Rows of raw logits by prefix, those unused for longest out first. One engine owns it: not safe for threads."""

    def __init__(self, model: str, num_bytes: int) -> None:
        """Make an empty cache, which takes memory row by row.

        Args:
            model: whatever makes the model's logits what they are.
            num_bytes: most memory of rows; less than one row's keeps nothing. Keys take about 200 bytes a row more.
        """
        self._model = model
        self.bound = num_bytes
        """Most memory of rows; where it is 0, nothing is kept, and callers need not ask."""
        self._rows: OrderedDict[bytes, Tensor] = OrderedDict()  # the longest unused first
        self._row_bytes = 0
        self.hits = self.evicted = 0
        """Look-ups that found their prefix, each a token without a pass; rows evicted."""

    def __len__(self) -> int:
        """Rows held."""
        return len(self._rows)

    def __contains__(self, key: bytes) -> bool:
        """Whether a prefix is known; counts as no use of it."""
        return key in self._rows

    @property
    def num_bytes(self) -> int:
        """Memory of the rows."""
        return len(self._rows) * self._row_bytes

    def clear(self) -> None:
        """Forget all."""
        self._rows.clear()

    def logits(self, sequence: ActiveSequence) -> Tensor | None:
        """Return the raw logits after a sequence, shape ``[V]``, if they are known."""
        return self.get(self._key(sequence)) if self._takes(sequence) else None

    def keep(self, sequence: ActiveSequence, draft: Draft, path: Sequence[int], logits: Tensor) -> None:
        """Keep the logits of a pass, before its tokens become part of the sequence.

        Args:
            sequence: as it was before the pass.
            draft: what was verified after it.
            path: accepted nodes, which are the last to go.
            logits: after the sequence and after every node, shape ``[1 + nodes, V]``; rows after these
                are not looked at.
        """
        if self._takes(sequence):
            keys = keys_of_nodes(self._key(sequence), draft)
            order = dict.fromkeys((0, *(node + 1 for node in path), *range(len(keys))))
            self.put_many([keys[index] for index in order], [logits[index] for index in order])

    def get(self, key: bytes) -> Tensor | None:
        """Return a copy of the logits after a prefix, shape ``[V]``, or None if they are not known.

        A copy, because the row may be evicted while the caller still works on it; it takes a thousandth of
        the pass that it saves.
        """
        if key not in self._rows:
            return None
        self._rows.move_to_end(key)
        self.hits += 1
        return self._rows[key].clone()

    def put_many(self, keys: Sequence[bytes], rows: Sequence[Tensor]) -> None:
        """Keep copies of the logits after prefixes. A prefix that is known keeps its row, and counts as used.

        Args:
            keys: of equal ones the first counts. The first ones are evicted last, and if they do not all fit, the last
                ones are left out.
            rows: one per key, shape ``[V]``; of the same V, dtype and device in every call.
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
        except RuntimeError as error:  # decoding continues without
            logger.warning("no memory for target_cache, going on without; set it lower: {}", error)
            self.clear()
            self.bound = 0

    def _takes(self, sequence: ActiveSequence) -> bool:
        return bool(self.bound) and sequence.config.speculation != "off"

    def _key(self, sequence: ActiveSequence) -> bytes:
        """Return the sequence's key; that of its beginning is kept with it."""
        known = sequence.prefix_key or key_of(f"{self._model}\0{sequence.tenant}")
        sequence.prefix_key = extended(known, sequence.token_ids[sequence.num_keyed :])
        sequence.num_keyed = len(sequence.token_ids)
        return sequence.prefix_key


def key_of(model: str, token_ids: Iterable[TokenId] = ()) -> bytes:
    """Name a sequence of tokens of one model by a digest of 128 bits: no two sequences that one meets share it.

    The key of a sequence follows from that of all but its last token, in about half a microsecond.
    """
    return extended(hashlib.blake2b(model.encode(), digest_size=_DIGEST_BYTES).digest(), token_ids)


def extended(key: bytes, token_ids: Iterable[TokenId]) -> bytes:
    """Return the key of a sequence and more tokens; in how many parts they come makes no difference."""
    for token_id in token_ids:
        tail = token_id.to_bytes(_TOKEN_BYTES, "little")
        key = hashlib.blake2b(key + tail, digest_size=_DIGEST_BYTES).digest()
    return key


def keys_of_nodes(key: bytes, draft: Draft) -> list[bytes]:
    """Return the keys of the root, which is a known sequence, and of every node of a draft: ``1 + len(draft)``."""
    keys = [key]
    for parent, token_id in zip(draft.parents, draft.token_ids, strict=True):
        keys.append(extended(keys[parent], (token_id,)))
    return keys
