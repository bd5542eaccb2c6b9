"""What a graph knows after a text, as a tree of plain values: the part of the graph that a picture shows."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from speculant_graph.graph.ngrams import Ngram, NgramGraph
from speculant_graph.types import TokenId

Decode = Callable[[Sequence[TokenId]], str]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the prompt."""

    token_id: TokenId
    """Its id."""
    text: str
    """Its text."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A token that followed a context."""

    token_id: TokenId
    """Its id."""
    text: str
    """Its text."""
    count: int
    """How often it followed the context."""
    probability: float
    """P(token | context)."""


@dataclass(frozen=True, slots=True)
class Step:
    """A token that may come next, and what may come after it."""

    token_id: TokenId
    """Its id."""
    text: str
    """Its text."""
    count: int
    """How often it followed the context that predicts it."""
    probability: float
    """P(token | context)."""
    order: int
    """Length of that context; 0 if there is none, and the count is the token's own."""
    path_probability: float
    """Product of the probabilities from the root to here."""
    num_successors: int
    """How many different tokens followed the longest context that is known after this token."""
    children: tuple[Step, ...]
    """The most frequent of them, unless the tree ends here."""


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """What the graph knows after the last tokens of the prompt, so many and no fewer."""

    order: int
    """How many tokens."""
    context: tuple[Token, ...]
    """These tokens; empty if the prompt has fewer."""
    count: int
    """How often any token followed them."""
    num_successors: int
    """How many different tokens followed them; 0 if the context is unknown."""
    successors: tuple[Successor, ...]
    """The most frequent of them."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The part of a graph around the end of a prompt."""

    num_prompt_tokens: int
    """Tokens of the prompt."""
    context: tuple[Token, ...]
    """The longest known end of the prompt, the root of the tree. If it is empty, nothing of the prompt is known, and
    the tree begins with the most frequent tokens of the graph."""
    unused: tuple[Token, ...]
    """The tokens before it that the graph could have used: with ``context`` at most N."""
    num_successors: int
    """How many different tokens followed the context; without one, how many the graph has."""
    steps: tuple[Step, ...]
    """The most frequent of them, and what may follow."""
    num_steps: int
    """Size of the tree, the root not counted."""
    orders: tuple[OrderSummary, ...]
    """Orders 1 to N."""


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What the longest known context of a window predicts."""

    order: int
    num_successors: int
    likeliest: tuple[tuple[TokenId, int, float], ...]
    """Token id, count and probability; the most frequent first."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A step that may become part of the tree."""

    token_id: TokenId
    count: int
    probability: float
    order: int
    path_probability: float
    parent: int
    """Index of the step before it; -1 is the root."""
    depth: int
    window: Ngram
    """The last N tokens, this one included."""


def explore(
    graph: NgramGraph,
    prompt: Sequence[TokenId],
    decode: Decode,
    *,
    depth: int = 3,
    branches: int = 6,
    max_steps: int = 400,
) -> Neighbourhood:
    """Return what may follow a prompt.

    After each token the window of the last N tokens slides on, and the longest known context at its end predicts.

    Args:
        graph: the graph.
        prompt: its token ids.
        decode: token ids to text.
        depth: most tokens in a row.
        branches: most successors of a context.
        max_steps: most tokens of the tree; the likeliest paths come first.
    """
    window = tuple(prompt[-graph.max_order :])
    outlook = _outlook(graph, window, branches)
    start = outlook if outlook.order else _most_frequent(graph, branches)
    taken = _likeliest_steps(graph, start, window, depth, branches, max_steps)
    tokens = _tokens(window, decode)
    return Neighbourhood(
        num_prompt_tokens=len(prompt),
        context=tokens[len(tokens) - outlook.order :],
        unused=tokens[: len(tokens) - outlook.order],
        num_successors=start.num_successors,
        steps=_as_tree(taken, decode),
        num_steps=len(taken),
        orders=tuple(_summary(graph, window, order, decode, branches) for order in range(1, graph.max_order + 1)),
    )


def _outlook(graph: NgramGraph, window: Ngram, branches: int) -> _Outlook:
    match = graph.match(window)
    if match is None:
        return _Outlook(0, 0, ())
    successors = graph.successors(match)
    total = successors.total
    likeliest = ((token_id, count, count / max(1, total)) for token_id, count in successors.most_common(branches))
    return _Outlook(match.order, len(successors), tuple(likeliest))


def _most_frequent(graph: NgramGraph, branches: int) -> _Outlook:
    counts = graph.counts(1)
    total = int(counts.sum(dtype=np.uint64))
    likeliest = ((token_id, count, count / max(1, total)) for (token_id,), count in graph.most_common(branches))
    return _Outlook(0, counts.size, tuple(likeliest))


def _likeliest_steps(
    graph: NgramGraph, start: _Outlook, window: Ngram, depth: int, branches: int, max_steps: int
) -> list[tuple[_Candidate, int]]:
    """Return the steps of the tree, parents before children, each with the number of its successors."""
    taken: list[tuple[_Candidate, int]] = []
    heap: list[tuple[float, int, _Candidate]] = []
    numbers = itertools.count()

    def offer(outlook: _Outlook, window: Ngram, parent: int, depth: int, path_probability: float) -> None:
        for token_id, count, probability in outlook.likeliest:
            path = path_probability * probability
            moved = (*window, token_id)[-graph.max_order :]
            candidate = _Candidate(token_id, count, probability, outlook.order, path, parent, depth, moved)
            # Equally likely ones in the order they were found, so that the tree is always the same.
            heapq.heappush(heap, (-path, next(numbers), candidate))

    offer(start, window, -1, 1, 1.0)
    while heap and len(taken) < max_steps:
        candidate = heapq.heappop(heap)[2]
        outlook = _outlook(graph, candidate.window, branches)
        taken.append((candidate, outlook.num_successors))
        if candidate.depth < depth:
            offer(outlook, candidate.window, len(taken) - 1, candidate.depth + 1, candidate.path_probability)
    return taken


def _as_tree(taken: list[tuple[_Candidate, int]], decode: Decode) -> tuple[Step, ...]:
    children: list[list[Step]] = [[] for _ in range(len(taken) + 1)]  # the last one is the root's: its index is -1
    for index in reversed(range(len(taken))):
        candidate, num_successors = taken[index]
        step = Step(
            token_id=candidate.token_id,
            text=decode([candidate.token_id]),
            count=candidate.count,
            probability=candidate.probability,
            order=candidate.order,
            path_probability=candidate.path_probability,
            num_successors=num_successors,
            children=tuple(reversed(children[index])),
        )
        children[candidate.parent].append(step)
    return tuple(reversed(children[-1]))


def _summary(graph: NgramGraph, window: Ngram, order: int, decode: Decode, branches: int) -> OrderSummary:
    context = window[-order:] if order <= len(window) else ()
    successors = graph.successors(context)
    total = successors.total
    return OrderSummary(
        order=order,
        context=_tokens(context, decode),
        count=total,
        num_successors=len(successors),
        successors=tuple(
            Successor(token_id, decode([token_id]), count, count / max(1, total))
            for token_id, count in successors.most_common(branches)
        ),
    )


def _tokens(token_ids: Ngram, decode: Decode) -> tuple[Token, ...]:
    return tuple(Token(token_id, decode([token_id])) for token_id in token_ids)
