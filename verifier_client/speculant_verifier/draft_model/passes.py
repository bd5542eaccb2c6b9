"""Runs the draft model's passes. The model's KV cache follows the engine's sequences; passes add tree nodes to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import Draft, TokenId
from speculant_verifier.model import PREFILL_CHUNK, TargetModel
from speculant_verifier.sampling import top_logprobs

_MOST_HITS = 16
"""Maximum number of a sequence's pending tokens that one pass compares with the model's top tokens."""


@dataclass(frozen=True, slots=True)
class TopRows:
    """The draft model's most probable tokens after several nodes of one sequence."""

    token_ids: NDArray[np.int64]
    """Ids of the top tokens, ``[nodes, width]``, the most probable first."""
    logprobs: NDArray[np.float64]
    """Log-probabilities of the top tokens, ``[nodes, width]``: log-softmax of the raw logits over the whole
    vocabulary."""

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of the top tokens, ``[nodes, width]``."""
        return np.exp(self.logprobs)


@dataclass(eq=False, slots=True)
class CachedSequence:
    """A sequence in the model's KV cache: committed and pending tokens, and the tree below them."""

    row: int
    num_cached: int = 0
    """Number of committed tokens, whose keys and values stay in the cache."""
    pending: list[TokenId] = field(default_factory=list)
    """Tokens that are not committed yet; the last token of the sequence is always pending."""
    tokens: list[TokenId] = field(default_factory=list)
    """Tokens of the tree nodes whose keys and values are already in the cache, including padding."""
    parents: list[int] = field(default_factory=list)
    """Parent of each node: 0 for the last pending token, j + 1 for node j."""
    is_written: bool = False
    """Whether the keys and values of the pending tokens are already in the cache."""
    hits: list[bool] = field(default_factory=list)
    """For each of the latest pending tokens, whether it was the model's top token in the first pass over it."""

    @property
    def num_tokens(self) -> int:
        """Number of committed and pending tokens."""
        return self.num_cached + len(self.pending)


class DraftPasses:
    """One model and its KV cache, for a limited number of sequences at a time."""

    def __init__(self, model: TargetModel, num_rows: int) -> None:
        """Create an empty cache for at most ``num_rows`` sequences."""
        self.model, self.num_rows = model, num_rows
        self._cache = model.new_cache(0)
        self._sequences: list[CachedSequence] = []  # by row

    def add(self) -> CachedSequence | None:
        """Begin a sequence in a free row; return None if all rows are in use."""
        row = len(self._sequences)
        if row == self.num_rows:
            return None
        if row == self._cache.num_rows:
            self._cache.resize(min(self.num_rows, max(1, 2 * row)), self._cache.capacity)
        self._cache.clear(row)
        self._sequences.append(CachedSequence(row))
        return self._sequences[-1]

    def drop(self, sequence: CachedSequence) -> None:
        """End a sequence. The last row moves into the freed row, because adjacent rows can be read without a copy."""
        last = self._sequences.pop()
        if last is not sequence:
            self._cache.move_row(last.row, sequence.row)
            last.row = sequence.row
            self._sequences[last.row] = last

    def follow(self, sequences: Sequence[CachedSequence], texts: Sequence[Sequence[TokenId]]) -> None:
        """Add the emitted tokens: tokens that match tree nodes are committed, the other tokens become pending.

        Args:
            sequences: the sequences.
            texts: all tokens of each sequence; they begin with the tokens that are already known.
        """
        rows, paths = [], []
        for each, text in zip(sequences, texts, strict=True):
            path: list[int] = []
            if each.is_written:
                path = [*range(len(each.pending)), *_agreeing(each, text)][: len(text) - each.num_cached - 1]
                rows.append(each.row)
                paths.append(path)
            each.num_cached += len(path)
            each.pending = [token if token < self.model.vocabulary_size else 0 for token in text[each.num_cached :]]
            each.tokens, each.parents, each.is_written = [], [], False
        self._cache.commit_all(rows, paths)

    def read(self, sequence: CachedSequence) -> None:
        """Prefill a chunk of the pending tokens, but never the last pending token."""
        chunk = sequence.pending[:-1][:PREFILL_CHUNK]
        self.model.prefill([chunk], self._cache, [sequence.row])
        sequence.num_cached += len(chunk)
        sequence.pending = sequence.pending[len(chunk) :]

    def run(
        self, sequences: Sequence[CachedSequence], nodes: Sequence[Sequence[tuple[int, TokenId]]], width: int
    ) -> list[TopRows]:
        """Run one pass over pending tokens and new tree nodes.

        Args:
            sequences: the sequences; later passes of a step cover a subset of the first pass's sequences.
            nodes: per sequence, its new nodes as (parent, token). Parent 0 is the last pending token, and parent j + 1
                is node j of :attr:`CachedSequence.tokens`, which includes the new nodes.
            width: number of most probable tokens per node.

        Returns:
            For each sequence, one row of top tokens per new node. In the first pass of a step, the row of the last
            pending token precedes the rows of the new nodes.
        """
        written = len(sequences[0].pending) + len(sequences[0].tokens) if sequences[0].is_written else 0
        firsts = [len(each.tokens) for each in sequences]
        total = max(len(each.pending) + len(each.tokens) + len(new) for each, new in zip(sequences, nodes, strict=True))
        for each, new in zip(sequences, nodes, strict=True):
            each.tokens += [token for _, token in new]
            each.parents += [parent for parent, _ in new]
            missing = total - len(each.pending) - len(each.tokens)  # all rows of a pass have the same length
            each.tokens += [0] * missing
            each.parents += [0] * missing
        drafts = [Draft(tuple(each.tokens), tuple(each.parents)) for each in sequences]
        rows = [each.row for each in sequences]
        before = 0 if written else min(_MOST_HITS, max(len(each.pending) for each in sequences) - 1)
        pending = [each.pending for each in sequences]
        logits = self.model.forward(pending, self._cache, rows, drafts, written, before)
        best_tokens, logprobs = np.split(top_logprobs(logits, width), 2, axis=-1)
        token_ids = best_tokens.astype(np.int64)
        if not written:
            for index, each in enumerate(sequences):
                known = min(before, len(each.pending) - 1)
                best = token_ids[index, before - known : before, 0].tolist()
                each.hits = (
                    [token == pending for token, pending in zip(best, each.pending[-known:], strict=True)]
                    if known
                    else []
                )
                each.is_written = True
            return [
                TopRows(
                    token_ids[index, before : before + 1 + len(new)], logprobs[index, before : before + 1 + len(new)]
                )
                for index, new in enumerate(nodes)
            ]
        offsets = [len(each.pending) + first - written for each, first in zip(sequences, firsts, strict=True)]
        return [
            TopRows(token_ids[index, start : start + len(new)], logprobs[index, start : start + len(new)])
            for index, (new, start) in enumerate(zip(nodes, offsets, strict=True))
        ]


def candidates_of(rows: TopRows, width: int) -> list[list[tuple[TokenId, float]]]:
    """Return the ``width`` most probable tokens of each node and their probabilities, best first."""
    found = zip(rows.token_ids[:, :width].tolist(), rows.probabilities[:, :width].tolist(), strict=True)
    return [list(zip(*each, strict=True)) for each in found]


def _agreeing(sequence: CachedSequence, text: Sequence[TokenId]) -> list[int]:
    """Return the tree nodes that match the emitted tokens, as indices in the model's passes."""
    path, last = [], 0
    for token in text[sequence.num_tokens :]:
        found = next(
            (node for node, parent in enumerate(sequence.parents) if parent == last and sequence.tokens[node] == token),
            None,
        )
        if found is None:
            break
        path.append(len(sequence.pending) + found)
        last = found + 1
    return path
