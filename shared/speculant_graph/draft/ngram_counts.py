"""N-grams counted while a sequence grows, and the chains drafted from them (strategy ``nasd``).

Contexts are mapped to their most frequent successor. The counts learn from the prompt and then from every verified
token, the target's most probable tokens included; the accepted text so becomes the drafter. Dictionaries, a few
microseconds a token; :class:`~speculant_graph.graph.ngrams.NgramGraph` is the fast form of text that is known
beforehand.

Counts belong to one thread at a time. They know no torch: ``speculant_graph.NGramStorage`` is their form for tensors.
"""

from __future__ import annotations

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

Context = tuple[TokenId, ...]
"""The tokens before a successor."""

_NOT_A_BATCH = "n-gram counts take batches of token ids; put a single sequence into a list of its own"


class NGramCounts:
    """Counts of what followed contexts of every length from ``shortest_context`` to n - 1 tokens.

    Methods take batches, one row per sequence; a row is anything of integers: a list, an array, a tensor.
    """

    def __init__(
        self, n: int, vocabulary_size: int, *, shortest_context: int = 1, max_contexts: int = DEFAULT_MAX_CONTEXTS
    ) -> None:
        """Make counts of nothing.

        Args:
            n: tokens of the longest n-gram, one more than its context.
            vocabulary_size: random tokens, which stand where nothing is known, are below this number.
            shortest_context: tokens of the shortest context, at most n - 1.
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
        self.max_contexts = max_contexts
        self._lengths = range(n - 1, shortest_context - 1, -1)
        # Two tables of plain values: the garbage collector has nothing to look through in them.
        self.counts: OrderedDict[Context, dict[TokenId, int]] = OrderedDict()
        """What followed each context, and how often; the context learned from the longest time ago is first."""
        self.most_frequent: dict[Context, TokenId] = {}
        """The successor of each context that :meth:`next_token` gives."""

    def __len__(self) -> int:
        """Number of contexts stored."""
        return len(self.counts)

    def initialize(self, token_ids: Sequence[Sequence[TokenId]], start: int = 1) -> None:
        """Learn every n-gram of some sequences, such as prompts; what was learned before stays.

        Args:
            token_ids: one sequence per row, of any lengths.
            start: index of the first token of each row that is counted as a successor.

        Raises:
            DraftRequestError: a row holds what is no token id; nothing was learned.
        """
        for row in [_integers(row) for row in token_ids]:
            for i in range(max(1, start), len(row)):
                self._learn(row, i, i + 1)

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
        pairs = [
            (self._end(context), _integers(token_ids)) for context, token_ids in zip(contexts, next_tokens, strict=True)
        ]
        for end, token_ids in pairs:
            self._learn(end + token_ids, len(end), len(end) + len(token_ids))

    def next_token(
        self, contexts: Sequence[Sequence[TokenId]], position: int | None = None
    ) -> tuple[list[TokenId], list[bool]]:
        """Predict the next token of every sequence: the most frequent successor of its longest stored context.

        Of successors seen equally often, the first that reached the count. Reading changes nothing.

        Args:
            contexts: one sequence per row; its last n - 1 tokens are read.
            position: index in the sequence of the token asked for, where contexts are only the ends of sequences;
                otherwise the length of each context.

        Returns:
            Per row the token and whether its context is known. Where it is not, the token is a random one: a
            function of the position alone.
        """
        token_ids, known = [], []
        for context in contexts:
            stored = self._find(context)
            known.append(stored is not None)
            if stored is not None:
                token_ids.append(self.most_frequent[stored])
            else:
                number = uniform(0, len(context) if position is None else position, PROPOSAL_STREAM)
                token_ids.append(int(number * self.vocabulary_size))
        return token_ids, known

    def successors(self, context: Sequence[TokenId]) -> list[tuple[TokenId, int]]:
        """Return what followed the longest stored end of one context, with counts; nothing if none is stored.

        The most frequent first, which is the one that :meth:`next_token` gives.
        """
        stored = self._find(context)
        return [] if stored is None else self._ranked(stored)

    def _find(self, context: Sequence[TokenId]) -> Context | None:
        """Return the longest stored end of a context."""
        end = self._end(context)
        for length in self._lengths:
            if length <= len(end) and (key := end[-length:]) in self.most_frequent:
                return key
        return None

    def _ranked(self, stored: Context) -> list[tuple[TokenId, int]]:
        best = self.most_frequent[stored]
        return sorted(self.counts[stored].items(), key=lambda item: (item[1], item[0] == best), reverse=True)

    def _learn(self, row: Context, start: int, stop: int) -> None:
        """Count the tokens from ``start`` to before ``stop`` as successors of the contexts that end at ``start``."""
        token_ids = row[start:stop]
        if not token_ids:
            return
        all_counts, most_frequent = self.counts, self.most_frequent
        for length in self._lengths:
            if length > start:
                continue
            key = row[start - length : start]
            counts = all_counts.get(key)
            if counts is None:
                counts = all_counts[key] = {}
                most_frequent[key] = token_ids[0]
            else:
                all_counts.move_to_end(key)
            for token_id in token_ids:
                count = counts[token_id] = counts.get(token_id, 0) + 1
                if count > counts[most_frequent[key]]:  # not at a tie: the first to reach a count stays
                    most_frequent[key] = token_id
            if len(counts) > MAX_SUCCESSORS:
                for rare, _ in self._ranked(key)[MAX_SUCCESSORS // 2 :]:
                    del counts[rare]
        while len(all_counts) > self.max_contexts:
            forgotten, _ = all_counts.popitem(last=False)
            del most_frequent[forgotten]

    def _end(self, context: Sequence[TokenId]) -> Context:
        try:
            return _integers(context[1 - self.n :])
        except (TypeError, IndexError):  # slicing a number, of Python or of an array
            raise DraftRequestError(_NOT_A_BATCH) from None


def _integers(token_ids: Sequence[TokenId]) -> Context:
    """Return Python's integers: equal elements of an array or a tensor are not always equal keys."""
    try:
        return tuple(map(index, token_ids))
    except TypeError:
        raise DraftRequestError(_NOT_A_BATCH) from None


def draft_nasd(
    counts: NGramCounts,
    token_ids: Sequence[TokenId],
    k: int,
    *,
    stop_if_unknown: bool = True,
    position: int | None = None,
) -> Draft:
    """Draft a chain: the next token again and again.

    Args:
        counts: what to draft from; they are not changed.
        token_ids: the sequence so far, or at least its last n - 1 tokens.
        k: most tokens; none if it is not positive.
        stop_if_unknown: end at a context that is not stored; otherwise a random token stands there.
        position: index in the sequence of the first token drafted, ``len(token_ids)`` by default.
    """
    window = list(token_ids[1 - counts.n :])
    start = len(token_ids) if position is None else position
    drafted: list[TokenId] = []
    while len(drafted) < k:
        (token_id,), (is_known,) = counts.next_token([window], start + len(drafted))
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
    counts: NGramCounts,
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
        counts: what learns.
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
    counts.update(
        [token_ids[max(0, position - counts.n + 1) : position] for position in positions],
        [[token_ids[position], *row] for position, row in zip(positions, filler, strict=False)],
    )
