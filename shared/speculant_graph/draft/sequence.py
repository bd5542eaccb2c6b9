"""One sequence that is drafted for, and what ``nasd`` stores of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from speculant_graph import _core
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learned import Memory
from speculant_graph.draft.ngram_counts import NGramCounts, draft_nasd, learn_verified
from speculant_graph.draft.proposal_tree import Candidates, ExpandedNode
from speculant_graph.graph.layout import Int64Array
from speculant_graph.types import EMPTY_DRAFT, Draft, TokenId

_STORED_CONTEXTS = 250_000
"""Most contexts that ``nasd`` keeps for a sequence; the longest unseen are forgotten first. At order 4 ordinary text
has about one for each token, text that never repeats anything has three."""
_STORED_AT_ONCE = 3_072
"""Contexts of the prompt that one step stores: some 5 ms, for which other sequences may have to wait."""
_BYTES_OF_A_CONTEXT = 512
"""About what the storage of ``nasd`` takes for each."""


class DraftedSequence:
    """A sequence of the core, and its storage if ``nasd`` drafts for it; not safe to share between threads."""

    def __init__(self, core: _core.Sequence, config: DraftConfig, memory: Memory, vocabulary_size: int) -> None:
        """Begin.

        Args:
            core: the sequence, without tokens.
            config: how to draft, until another draft goes by other settings.
            memory: its tenant's.
            vocabulary_size: ids below it are tokens.
        """
        self.core = core
        self.config = config
        """How to draft."""
        self.memory = memory
        """What its tenant's sequences accepted."""
        self._vocabulary_size = vocabulary_size
        self._draft = EMPTY_DRAFT  # by nasd, since the latest tokens came
        self._rows: dict[int, list[TokenId]] = {}  # of the target, after its nodes
        self._storage: NGramCounts | None = None
        self._storing: Iterator[None] = iter(())

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.core)

    @property
    def num_bytes(self) -> int:
        """Memory that is this sequence's own."""
        return self.core.num_bytes + (_BYTES_OF_A_CONTEXT * len(self._storage) if self._storage is not None else 0)

    @property
    def has_storage(self) -> bool:
        """Whether ``nasd`` has drafted for it, so that it must know of all drafts."""
        return self._storage is not None

    def note(self, draft: Draft) -> None:
        """Note the latest draft, whatever made it."""
        self._draft, self._rows = draft, {}

    def note_rows(self, nodes: Sequence[int], rows: Int64Array) -> None:
        """Note the target's top tokens after nodes of the latest draft; those of its vocabulary count."""
        if self._storage is None:
            return
        for node, row in zip(nodes, rows[:, : self.config.filler_top_k].tolist(), strict=True):
            foreign = (rank for rank, token_id in enumerate(row) if not 0 <= token_id < self._vocabulary_size)
            self._rows[node] = row[: next(foreign, len(row))]

    def store(self, emitted: Int64Array) -> None:
        """Let the storage learn from accepted tokens, before the sequence takes them."""
        if self._storage is not None and emitted.size:
            path = accepted_path(self._draft, emitted.tolist())
            self._store_emitted(self._storage, emitted.tolist(), path)
            self._draft, self._rows = EMPTY_DRAFT, {}

    def draft_from_storage(self, budget: int) -> Draft:
        """Draft a chain from n-grams that this sequence stored (``nasd``)."""
        if self._storage is None or self._storage.n != self.config.nasd_order:
            self._storage = NGramCounts(self.config.nasd_order, self._vocabulary_size, max_contexts=_STORED_CONTEXTS)
            self._storing = _store(self._storage, self._valid_end(len(self.core)))
        next(self._storing, None)
        return draft_nasd(
            self._storage,
            self._valid_end(self.config.nasd_order),
            budget,
            stop_if_unknown=self.config.stop_if_unknown,
            position=len(self.core),
        )

    def _store_emitted(self, storage: NGramCounts, emitted: list[TokenId], path: list[int]) -> None:
        is_foreign = not 0 <= min(emitted) <= max(emitted) < self._vocabulary_size
        if is_foreign or len(emitted) > _STORED_AT_ONCE // self.config.nasd_order:
            self._storage = None  # made again, step by step, from what follows the foreign tokens
            return
        before = self._valid_end(self.config.nasd_order)
        rows: list[Sequence[TokenId]] = [[] for _ in emitted]
        for index, node in enumerate([0, *path][: len(emitted)]):
            rows[index] = self._rows.get(node, [])
        learn_verified(storage, [*before, *emitted], len(before), rows, self.config.filler_top_k)

    def _valid_end(self, num_tokens: int) -> list[TokenId]:
        tokens: NDArray[np.int32] = self.core.latest(num_tokens)
        foreign = np.flatnonzero(tokens < 0)
        valid: list[TokenId] = tokens[int(foreign[-1]) + 1 if foreign.size else 0 :].tolist()
        return valid


def _store(storage: NGramCounts, token_ids: list[TokenId]) -> Iterator[None]:
    """Learn a prompt, as many tokens at every step of the iterator as a draft may wait for."""
    num_tokens = max(1, _STORED_AT_ONCE // (storage.n - 1))
    for start in range(0, len(token_ids), num_tokens):
        first = max(0, start - storage.n + 1)
        storage.initialize([token_ids[first : start + num_tokens]], start - first)
        yield


def accepted_path(draft: Draft, token_ids: Sequence[TokenId]) -> list[int]:
    """Return the nodes of a draft, numbered from 1, along which it agrees with the tokens that followed."""
    path: list[int] = []
    last = 0
    for node, (parent, token_id) in enumerate(zip(draft.parents, draft.token_ids, strict=True), start=1):
        # Children come after their parents, so one look at every node is enough.
        if parent == last and len(path) < len(token_ids) and token_id == token_ids[len(path)]:
            path.append(node)
            last = node
    return path


class SequenceProposals:
    """What may follow a sequence and paths from it, by calibrated probability; a ``ProposalSource``."""

    def __init__(self, drafter: _core.Drafter, sequence: _core.Sequence) -> None:
        """Propose from a sequence, which must not change meanwhile."""
        self._drafter = drafter
        self._sequence = sequence
        self._paths: list[list[TokenId]] = []

    def expand(self, nodes: Sequence[ExpandedNode], limit: int) -> list[Candidates]:
        """Return the candidates of every node; see ``ProposalSource``."""
        candidates = []
        for node in nodes:
            self._paths.append([*self._paths[node.parent], node.token_id] if node.number else [])
            path = np.array(self._paths[-1], np.int64)
            candidates.append(Candidates(*self._drafter.propose(self._sequence, path, limit)))
        return candidates
