"""N-grams stored while a sequence grows, and the chains drafted from them (strategy ``nasd``).

A storage maps contexts to their most frequent successor. It learns from the prompt and then from every verified token,
the target's most probable tokens included; the accepted text so becomes the drafter. Dictionaries, a few microseconds a
token; :class:`~speculant_graph.graph.ngrams.NgramGraph` is the fast form of text that is known beforehand.

A storage belongs to one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import index

from speculant_graph.errors import ConfigError, DraftRequestError
from speculant_graph.random_stream import PROPOSAL_STREAM, uniform
from speculant_graph.types import Draft, TokenId

DEFAULT_MAX_CONTEXTS = 1_000_000
"""About half a gigabyte once they are all there: in ordinary text 420 to 480 bytes for a context and its successors."""

MAX_SUCCESSORS = 1_024
"""Different successors remembered per context; a context that gets more forgets the rarer half of them."""

_Context = tuple[TokenId, ...]

_NOT_A_BATCH = "an n-gram storage takes batches of token ids; put a single sequence into a list of its own"


class NGramStorageBase(ABC):
    """Counts of what followed contexts; subclasses say which lengths of context are stored.

    Methods take batches, one row per sequence.
    """

    def __init__(self, n: int, vocabulary_size: int, seed: int = 0, max_contexts: int = DEFAULT_MAX_CONTEXTS) -> None:
        """Make an empty storage.

        Args:
            n: tokens of the longest n-gram, one more than its context.
            vocabulary_size: token ids are below this number.
            seed: seed of the tokens that stand where nothing is known.
            max_contexts: most contexts stored; beyond it those go that were learned from the longest time ago.

        Raises:
            ConfigError: a number is too small.
        """
        for name, value, least in (
            ("n", n, 2),
            ("vocabulary_size", vocabulary_size, 1),
            ("max_contexts", max_contexts, 1),
        ):
            if value < least:
                raise ConfigError(f"{name} of an n-gram storage is {value}; give at least {least}")
        self.n = n
        self.vocabulary_size = vocabulary_size
        self.seed = seed
        self.max_contexts = max_contexts
        self._lengths = range(n - 1, self._shortest_context() - 1, -1)
        # Two plain tables of plain values: the garbage collector has nothing to look through in them.
        self._counts: OrderedDict[_Context, dict[TokenId, int]] = OrderedDict()
        self._most_frequent: dict[_Context, TokenId] = {}

    @abstractmethod
    def _shortest_context(self) -> int:
        """Return the length of the shortest context that is stored; the longest has n - 1 tokens."""

    def __len__(self) -> int:
        """Number of contexts stored."""
        return len(self._counts)

    def initialize(self, token_ids: Sequence[Sequence[TokenId]]) -> None:
        """Learn every n-gram of some sequences, such as prompts; what was learned before stays.

        Args:
            token_ids: one sequence per row, of any lengths.

        Raises:
            DraftRequestError: a row holds what is no token id; nothing was learned.
        """
        for row in [self._checked((), row) for row in token_ids]:
            for place in range(1, len(row)):
                self._learn(row, place, place + 1)

    def update(self, contexts: Sequence[Sequence[TokenId]], next_tokens: Sequence[Sequence[TokenId]]) -> None:
        """Count each of a row's next tokens once as a successor of the row's context.

        A context of exactly n - 1 tokens is enough for the longest n-gram.

        Args:
            contexts: what is before, one sequence per row; its last n - 1 tokens are read.
            next_tokens: as many rows; several tokens in a row are alternatives, not a continuation.

        Raises:
            DraftRequestError: the numbers of rows differ, or a row holds what is no token id; nothing was learned.
        """
        if len(contexts) != len(next_tokens):
            raise DraftRequestError(
                f"{len(contexts)} contexts came with {len(next_tokens)} rows of next tokens; give one row per context"
            )
        rows = []
        for context, token_ids in zip(contexts, next_tokens, strict=True):
            end = self._end(context)
            rows.append((len(end), self._checked(end, token_ids)))
        for length, row in rows:
            self._learn(row, length, len(row))

    def next_token(
        self, contexts: Sequence[Sequence[TokenId]], position: int | None = None
    ) -> tuple[list[TokenId], list[bool]]:
        """Predict the next token of every sequence: the most frequent successor of its longest stored context.

        Of successors seen equally often, the first that reached the count. Reading changes nothing in the storage.

        Args:
            contexts: one sequence per row; its last n - 1 tokens are read. Ids outside the vocabulary are unknown.
            position: index in the sequence of the token asked for, where contexts are only the ends of sequences;
                otherwise the length of each context.

        Returns:
            Per row the token and whether its context is known. Where it is not, the token is a random one: a
            function of the seed and the position alone.
        """
        token_ids, known = [], []
        for context in contexts:
            stored = self._find(context)
            known.append(stored is not None)
            if stored is not None:
                token_ids.append(self._most_frequent[stored])
            else:
                number = uniform(self.seed, len(context) if position is None else position, PROPOSAL_STREAM)
                token_ids.append(int(number * self.vocabulary_size))
        return token_ids, known

    def successors(self, context: Sequence[TokenId]) -> list[tuple[TokenId, int]]:
        """Return what followed the longest stored end of one context, with counts; nothing if none is stored.

        The most frequent first, which is the one that :meth:`next_token` gives.
        """
        stored = self._find(context)
        return [] if stored is None else self._ranked(stored)

    def _find(self, context: Sequence[TokenId]) -> _Context | None:
        """Return the longest stored end of a context."""
        end = self._end(context)
        for length in self._lengths:
            if length <= len(end) and (key := end[-length:]) in self._most_frequent:
                return key
        return None

    def _ranked(self, stored: _Context) -> list[tuple[TokenId, int]]:
        best = self._most_frequent[stored]
        return sorted(self._counts[stored].items(), key=lambda item: (item[1], item[0] == best), reverse=True)

    def _learn(self, row: _Context, place: int, stop: int) -> None:
        """Count the tokens from ``place`` to before ``stop`` as successors of the contexts that end at ``place``."""
        token_ids = row[place:stop]
        for length in self._lengths if token_ids else ():
            if length > place:
                continue
            key = row[place - length : place]
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = {}
                self._most_frequent[key] = token_ids[0]
            else:
                self._counts.move_to_end(key)
            for token_id in token_ids:
                count = counts[token_id] = counts.get(token_id, 0) + 1
                if count > counts[self._most_frequent[key]]:  # not at a tie: the first to reach a count stays
                    self._most_frequent[key] = token_id
                if len(counts) > MAX_SUCCESSORS:
                    for rare, _ in self._ranked(key)[MAX_SUCCESSORS // 2 :]:
                        del counts[rare]
        while len(self._counts) > self.max_contexts:
            forgotten, _ = self._counts.popitem(last=False)
            del self._most_frequent[forgotten]

    def _end(self, context: Sequence[TokenId]) -> _Context:
        try:
            return tuple(context[1 - self.n :])
        except TypeError:
            raise DraftRequestError(_NOT_A_BATCH) from None

    def _checked(self, end: _Context, token_ids: Sequence[TokenId]) -> _Context:
        """Return both one after the other, as integers of the vocabulary."""
        try:
            checked = (*map(index, end), *map(index, token_ids))
        except TypeError:
            raise DraftRequestError(_NOT_A_BATCH) from None
        if checked and not 0 <= min(checked) <= max(checked) < self.vocabulary_size:
            wrong = next(token_id for token_id in checked if not 0 <= token_id < self.vocabulary_size)
            raise DraftRequestError(
                f"token id {wrong} is outside the vocabulary of {self.vocabulary_size}; "
                "give the storage the tokenizer's vocabulary size"
            )
        return checked


class OneLevelNGramStorage(NGramStorageBase):
    """n-grams of one length: contexts of exactly n - 1 tokens, and nothing where that is unknown."""

    def _shortest_context(self) -> int:
        return self.n - 1


class NGramStorage(NGramStorageBase):
    """n-grams of 2 to n tokens: the longest known context of n - 1 down to 1 tokens decides.

    A 2-gram is a context of one token and its successor, so contexts of one token belong to it; a storage that stopped
    at two tokens would be empty for n = 2 and would stay silent where one token is all that repeats.
    """

    def _shortest_context(self) -> int:
        return 1


def draft_nasd(
    storage: NGramStorageBase,
    token_ids: Sequence[TokenId],
    k: int,
    *,
    stop_if_unknown: bool = True,
    position: int | None = None,
) -> Draft:
    """Draft a chain: the storage's next token again and again.

    Args:
        storage: what to draft from; it is not changed.
        token_ids: the sequence so far, or at least its last n - 1 tokens.
        k: most tokens; none if it is not positive.
        stop_if_unknown: end at a context that is not stored; otherwise a random token stands there.
        position: index in the sequence of the first token drafted, ``len(token_ids)`` by default.
    """
    window = list(token_ids[1 - storage.n :])
    start = len(token_ids) if position is None else position
    drafted: list[TokenId] = []
    while len(drafted) < k:
        (token_id,), (is_known,) = storage.next_token([window], start + len(drafted))
        if stop_if_unknown and not is_known:
            break
        drafted.append(token_id)
        window.append(token_id)
    return Draft(
        token_ids=tuple(drafted),
        parents=tuple(range(len(drafted))),
        strategy="nasd",
        terminated_early=len(drafted) < k,
    )


def learn_verified(
    storage: NGramStorageBase,
    token_ids: Sequence[TokenId],
    start: int,
    top_rows: Sequence[Sequence[TokenId]] | None = None,
    filler_top_k: int = 3,
) -> None:
    """Learn the tokens that a verification emitted, and what else the target thought probable there.

    At every position the emitted token counts once, then each token of the target's row once: alternatives to what was
    emitted become known, too. What is learned is the token that verification has already drawn. (The algorithm's usual
    form draws from the target a second time after a mismatch, which under sampling favours the drafted tokens.)

    Args:
        storage: what learns.
        token_ids: the sequence with the emitted tokens at its end, or at least its last n - 1 tokens before them.
        start: index in ``token_ids`` of the first emitted token.
        top_rows: per emitted token the target's most probable tokens at its position, best first; a row may be empty.
            None if the target did not send any.
        filler_top_k: how many tokens of each row are learned; 1 or less learns the emitted tokens alone.

    Raises:
        DraftRequestError: there is not one row per emitted token, or something is no token id; nothing was learned.
    """
    positions = range(start, len(token_ids))
    if top_rows is not None and len(top_rows) != len(positions):
        raise DraftRequestError(
            f"{len(top_rows)} rows of top tokens came with {len(positions)} emitted tokens; give one row per token"
        )
    filler: Iterable[Sequence[TokenId]] = repeat(())
    if top_rows is not None and filler_top_k > 1:
        filler = (row[:filler_top_k] for row in top_rows)
    storage.update(
        [token_ids[max(0, position - storage.n + 1) : position] for position in positions],
        [[token_ids[position], *row] for position, row in zip(positions, filler, strict=False)],
    )
