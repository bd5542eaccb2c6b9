"""The target's logits after prefixes that it has seen (SpecExec's speculative cache, arXiv 2406.02532).

A forward pass over a draft tree computes the target's logits after every node, and most of those nodes are rejected. If
one of their prefixes comes again, in a later step, in another sample of the prompt or in a request that is repeated,
its logits are looked up. They are kept as the model gave them: processors, temperature and seed belong to a request.

A row of logits is large (0.8 MB for gpt-oss in float32), so all is arranged around copying little and keeping exactly
what may be kept. The rows lie in one block that is taken when the first of them comes and never grows: it never
exceeds its bound, and no row keeps others in memory. It is on the device of the logits, where storing a row is
a copy that nothing waits for and a hit is used where it lies; a round trip to the CPU would cost more than it saves.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from loguru import logger
from torch import Tensor

from speculant_graph.types import Draft, TokenId

_DIGEST_BYTES = 16
_TOKEN_BYTES = 8
_ROWS_AT_ONCE = 64


class PrefixKey(bytes):
    """Names a sequence of tokens of one model, by a digest of 128 bits: no two sequences that one meets share it.

    The key of a sequence follows from that of all but its last token, in about half a microsecond. Immutable.
    """

    __slots__ = ()

    @classmethod
    def of(cls, model: str, token_ids: Iterable[TokenId] = ()) -> Self:
        """Return the key of a sequence.

        Args:
            model: whatever makes the model's logits what they are: its name or folder, revision, dtype, adapter.
            token_ids: the whole sequence, prompt included.
        """
        return cls(hashlib.blake2b(model.encode(), digest_size=_DIGEST_BYTES).digest()).extended(token_ids)

    def extended(self, token_ids: Iterable[TokenId]) -> Self:
        """Return the key of this sequence and more tokens; in how many parts they come makes no difference.

        Raises:
            OverflowError: a token id is negative or has more than 64 bits.
        """
        digest: bytes = self
        for token_id in token_ids:
            digest = _extended(digest, token_id)
        return type(self)(digest)

    def of_nodes(self, draft: Draft) -> list[Self]:
        """Return the keys of the root, which is this sequence, and of every node of a draft: ``1 + len(draft)``.

        Raises:
            OverflowError: a token id is negative or has more than 64 bits.
        """
        kind = type(self)
        keys = [self]
        for parent, token_id in zip(draft.parents, draft.token_ids, strict=True):
            keys.append(kind(_extended(keys[parent], token_id)))
        return keys


def _extended(digest: bytes, token_id: TokenId) -> bytes:
    return hashlib.blake2b(digest + token_id.to_bytes(_TOKEN_BYTES, "little"), digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class TargetCacheStatistics:
    """What a cache did since it was made, and what it holds."""

    hits: int = 0
    """Look-ups that found their prefix: each is a token without a pass."""
    stored: int = 0
    """Rows copied into the cache."""
    evicted: int = 0
    """Rows that were evicted."""
    num_rows: int = 0
    """Rows held."""
    num_bytes: int = 0
    """Memory taken, by rows held and by capacity for more."""


class TargetCache:
    """Rows of raw logits by prefix, those unused for longest out first. One engine owns it: not safe for threads."""

    def __init__(self, num_bytes: int) -> None:
        """Make an empty cache, which takes no memory before the first row comes.

        Args:
            num_bytes: most memory of rows; less than one row's keeps nothing. Keys take about 200 bytes a row more.
        """
        self._num_bytes = num_bytes
        self._slots: OrderedDict[PrefixKey, int] = OrderedDict()  # the longest unused first
        self._block: Tensor | None = None
        self._hits = self._stored = self._evicted = 0

    @property
    def statistics(self) -> TargetCacheStatistics:
        """Counts since the cache was made."""
        num_bytes = 0 if self._block is None else self._block.nbytes
        return TargetCacheStatistics(self._hits, self._stored, self._evicted, len(self._slots), num_bytes)

    def clear(self, num_bytes: int) -> None:
        """Drop all rows and give their memory back; other bytes bound those to come."""
        self._slots.clear()
        self._block, self._num_bytes = None, num_bytes

    def __len__(self) -> int:
        """Rows held."""
        return len(self._slots)

    def __contains__(self, key: PrefixKey) -> bool:
        """Whether a prefix is known; counts as no use of it."""
        return key in self._slots

    def get(self, key: PrefixKey) -> Tensor | None:
        """Return a copy of the logits after a prefix, shape ``[V]``, or None if they are not known.

        A copy, because the row may be evicted while the caller still works on it; it takes a thousandth of
        the pass that it saves.
        """
        slot = self._slots.get(key)
        if slot is None or self._block is None:
            return None
        self._slots.move_to_end(key)
        self._hits += 1
        return self._block[slot].clone()

    def put_many(self, keys: Sequence[PrefixKey], logits: Tensor, *, first: Sequence[int] = ()) -> None:
        """Keep copies of the logits after prefixes. A prefix that is known keeps its row, and counts as used.

        Args:
            keys: one per row; of equal ones the first counts. If they do not all fit, the last ones are left out.
            logits: shape ``[m, V]``; of the same V, dtype and device in every call.
            first: indices of the rows to keep before all others and to evict after them, such as those of the accepted
                path.
        """
        capacity = self._num_bytes // max(1, logits.shape[1] * logits.element_size())
        kept: dict[PrefixKey, int] = {}  # the first are the last to go
        for row in (*first, *range(len(keys))):
            if len(kept) < capacity:
                kept.setdefault(keys[row], row)
        self._touch(kept)  # so that none of them is evicted
        if new := {key: row for key, row in kept.items() if key not in self._slots}:
            self._store(new, logits, capacity)
            self._touch(kept)

    def _touch(self, kept: dict[PrefixKey, int]) -> None:
        for key in reversed(kept):
            if key in self._slots:
                self._slots.move_to_end(key)

    def _store(self, new: dict[PrefixKey, int], logits: Tensor, capacity: int) -> None:
        """Copy rows to free slots, then to those of the longest unused."""
        # A tensor made in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            if self._block is None:
                try:
                    self._block = torch.empty((capacity, logits.shape[1]), dtype=logits.dtype, device=logits.device)
                except RuntimeError as error:  # decoding goes on without
                    logger.warning("no memory for target_cache, going on without; set it lower: {}", error)
                    self._num_bytes = 0
                    return
            slots: list[int] = []
            for key in new:
                if len(self._slots) < capacity:
                    slot = len(self._slots)
                else:
                    _, slot = self._slots.popitem(last=False)
                    self._evicted += 1
                self._slots[key] = slot
                slots.append(slot)
            copy = _copy_singly if logits.device.type == "cpu" else _copy_together
            copy(self._block, slots, logits.detach(), list(new.values()))
        self._stored += len(new)


def _copy_singly(block: Tensor, slots: list[int], logits: Tensor, rows: list[int]) -> None:
    """Copy rows of logits to slots of the block one by one: on a CPU six times as fast as gathering them first."""
    for slot, row in zip(slots, rows, strict=True):
        block[slot].copy_(logits[row])


def _copy_together(block: Tensor, slots: list[int], logits: Tensor, rows: list[int]) -> None:
    """Copy rows of logits to slots of the block in few calls: on a GPU calls cost, and its memory is fast."""
    taken = torch.tensor([slots, rows]).to(logits.device)
    for part in taken.split(_ROWS_AT_ONCE, dim=1):  # gathering a whole tree would take as much memory as its logits
        block.index_copy_(0, part[0], logits.index_select(0, part[1]))
