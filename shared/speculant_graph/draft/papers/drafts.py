"""Drafts of papers for a sequence of the core, and what ``nasd`` stores of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from speculant_graph._core import Drafter, DraftSettings, Sequence
from speculant_graph.draft.papers.ngram_counts import NGramCounts, draft_nasd, learn_verified
from speculant_graph.draft.papers.trees import Propose, draft_beam, draft_tree
from speculant_graph.draft.strategies import STRATEGIES
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import MAX_VOCABULARY
from speculant_graph.types import Draft, TokenId

_STORED_CONTEXTS = 250_000
"""Most contexts that ``nasd`` keeps for a sequence; the longest unseen are forgotten first. At order 4 ordinary text
has about one for each token, text that never repeats anything has three."""
_STORED_AT_ONCE = 3_072
"""Contexts of the prompt that one step stores: some 5 ms, for which other sequences may have to wait."""
_BYTES_OF_A_CONTEXT = 512
"""About what the storage of ``nasd`` takes for each."""


class NgramStorage:
    """What ``nasd`` stores of a sequence; the core adds rows and tokens to it. Not safe to share between threads."""

    def __init__(self, sequence: Sequence, order: int, vocabulary_size: int) -> None:
        """Begin with a sequence as it is.

        Args:
            sequence: the sequence.
            order: tokens of the longest n-gram.
            vocabulary_size: ids below it are tokens.
        """
        self.order = order
        """Tokens of the longest n-gram."""
        self.is_void = False
        """Whether it has to be made again, as tokens came that it could not store."""
        self._counts = NGramCounts(order, vocabulary_size, max_contexts=_STORED_CONTEXTS)
        self._storing = _store(self._counts, _valid_end(sequence, len(sequence)))
        self._rows: dict[int, list[TokenId]] = {}  # of the target, after nodes of the latest draft

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return 0 if self.is_void else _BYTES_OF_A_CONTEXT * len(self._counts)

    def forget_rows(self) -> None:
        """Forget what was added of the draft before."""
        self._rows = {}

    def add_rows(self, rows: list[tuple[int, list[TokenId]]]) -> None:
        """Take the target's top tokens after nodes of the latest draft, negative for none; those before one count."""
        for node, row in rows:
            foreign = (rank for rank, token_id in enumerate(row) if token_id < 0)
            self._rows[node] = row[: next(foreign, len(row))]

    def accept(self, sequence: Sequence, emitted: list[TokenId], path: list[int], filler_top_k: int) -> None:
        """Learn from accepted tokens, before the sequence takes them.

        Args:
            sequence: the sequence.
            emitted: the tokens, negative for what is none.
            path: the nodes of its latest draft along which they agree.
            filler_top_k: how many of the target's top tokens are learned at every position.
        """
        self.is_void |= min(emitted) < 0 or len(emitted) > _STORED_AT_ONCE // self.order
        if self.is_void:  # made again, step by step, from what follows the foreign tokens
            return
        before = _valid_end(sequence, self.order)
        rows: list[list[TokenId]] = [[] for _ in emitted]
        for index, node in enumerate([0, *path][: len(emitted)]):
            rows[index] = self._rows.get(node, [])
        learn_verified(self._counts, [*before, *emitted], len(before), rows, filler_top_k)
        self._rows = {}

    def draft(self, sequence: Sequence, budget: int, *, stops_if_unknown: bool) -> Draft:
        """Draft a chain from the n-grams stored; of a long prompt some more are stored first."""
        next(self._storing, None)
        return draft_nasd(
            self._counts,
            _valid_end(sequence, self.order),
            budget,
            stop_if_unknown=stops_if_unknown,
            position=len(sequence),
        )


def make_draft(drafter: Drafter, sequence: Sequence, settings: DraftSettings, budget: int) -> Draft:
    """Draft for a sequence by a strategy that is not the core's own; the core calls it.

    Raises:
        ConfigError: a random token is to stand at an unknown context, and the vocabulary is not known.
    """
    strategy = STRATEGIES[settings.strategy - 1]
    if budget <= 0:
        return Draft(strategy=strategy)
    if strategy == "nasd":
        return _draft_from_storage(drafter, sequence, settings, budget)
    propose = propose_from(drafter, sequence)
    if strategy == "specexec":
        return draft_tree(propose, budget, settings.max_depth, settings.max_branches)
    return draft_beam(propose, budget, settings.max_depth, settings.beam_width, settings.max_branches)


def propose_from(drafter: Drafter, sequence: Sequence) -> Propose:
    """Return the source of what may follow paths from a sequence, which must not change meanwhile, as calibrated."""
    return lambda path, limit: drafter.propose(sequence, np.array(path, np.int64), limit)


def require_vocabulary(vocabulary_size: int, *, stops_if_unknown: bool) -> None:
    """Refuse ``nasd`` if a random token is to stand at an unknown context, and the vocabulary is not known.

    Raises:
        ConfigError: both is so.
    """
    if not stops_if_unknown and vocabulary_size == MAX_VOCABULARY:
        raise ConfigError(
            "draft.stop_if_unknown = false draws any token of the vocabulary, which is not known here; state how "
            "large it is, or leave the setting out"
        )


def _draft_from_storage(drafter: Drafter, sequence: Sequence, settings: DraftSettings, budget: int) -> Draft:
    require_vocabulary(drafter.vocabulary_size, stops_if_unknown=settings.stops_if_unknown)
    storage = sequence.storage
    if not isinstance(storage, NgramStorage) or storage.is_void or storage.order != settings.nasd_order:
        storage = NgramStorage(sequence, settings.nasd_order, drafter.vocabulary_size)
        sequence.storage = storage
    return storage.draft(sequence, budget, stops_if_unknown=settings.stops_if_unknown)


def _valid_end(sequence: Sequence, num_tokens: int) -> list[TokenId]:
    """Return the last tokens of a sequence, as far as they are of the vocabulary."""
    tokens = sequence.latest(num_tokens)
    foreign = np.flatnonzero(tokens < 0)
    valid: list[TokenId] = tokens[int(foreign[-1]) + 1 if foreign.size else 0 :].tolist()
    return valid


def _store(storage: NGramCounts, token_ids: list[TokenId]) -> Iterator[None]:
    """Learn a prompt, as many tokens at every step of the iterator as a draft may wait for."""
    num_tokens = max(1, _STORED_AT_ONCE // (storage.n - 1))
    for start in range(0, len(token_ids), num_tokens):
        first = max(0, start - storage.n + 1)
        storage.learn(token_ids[first : start + num_tokens], start - first)
        yield
