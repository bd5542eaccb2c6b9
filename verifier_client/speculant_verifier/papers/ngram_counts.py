"""N-grams counted while a sequence grows: the tables of NASD's storages.

Contexts are mapped to their most frequent successor. Dictionaries, a few microseconds a token;
:class:`~speculant_graph.graph.ngrams.NgramGraph` is the fast form of text that is known beforehand. Counts belong to
one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from speculant_graph.errors import ConfigError
from speculant_graph.random_stream import PROPOSAL_STREAM, uniform
from speculant_graph.types import TokenId

DEFAULT_MAX_CONTEXTS = 1_000_000
"""About half a gigabyte once they are all there: in ordinary text 420 to 480 bytes for a context and its successors."""

MAX_SUCCESSORS = 1_024
"""Different successors remembered per context; a context that gets more forgets the rarer half of them."""

Context = tuple[TokenId, ...]
"""The tokens before a successor."""


class NGramCounts:
    """Counts of what followed contexts of every length from ``shortest_context`` to n - 1 tokens."""

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
        """The successor of each context that :meth:`successor` gives."""

    def __len__(self) -> int:
        """Number of contexts stored."""
        return len(self.counts)

    def learn(self, token_ids: Sequence[TokenId], start: int = 1) -> None:
        """Learn every n-gram of a sequence; ``start`` is the index of the first token that counts as a successor."""
        row = tuple(token_ids)
        for i in range(max(1, start), len(row)):
            self.count(row[max(0, i + 1 - self.n) : i], row[i : i + 1])

    def count(self, context: Sequence[TokenId], token_ids: Sequence[TokenId]) -> None:
        """Count each token once as a successor of a context, of which the last n - 1 tokens are read.

        Several tokens are alternatives, not a continuation.
        """
        end = tuple(context[1 - self.n :])
        all_counts, most_frequent = self.counts, self.most_frequent
        for length in self._lengths if token_ids else ():
            if length > len(end):
                continue
            key = end[-length:]
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
                self._forget_rare(key)
        while len(all_counts) > self.max_contexts:
            forgotten, _ = all_counts.popitem(last=False)
            del most_frequent[forgotten]

    def successor(self, context: Sequence[TokenId]) -> TokenId | None:
        """Return the most frequent successor of the longest end of a context that is stored; None if none is.

        Of successors seen equally often, the first that reached the count. Reading changes nothing.
        """
        end = tuple(context[1 - self.n :])
        for length in self._lengths:
            if length <= len(end) and (token_id := self.most_frequent.get(end[-length:])) is not None:
                return token_id
        return None

    def random_token(self, position: int) -> TokenId:
        """Return what stands where the context is unknown: a function of the token's index in the sequence alone."""
        return int(uniform(0, position, PROPOSAL_STREAM) * self.vocabulary_size)

    def _forget_rare(self, key: Context) -> None:
        counts, best = self.counts[key], self.most_frequent[key]
        ranked = sorted(counts, key=lambda token_id: (counts[token_id], token_id == best), reverse=True)
        for rare in ranked[MAX_SUCCESSORS // 2 :]:
            del counts[rare]
