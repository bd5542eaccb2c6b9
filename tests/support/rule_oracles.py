"""A target made of rows over a whole vocabulary, and what block verification should accept, from its formula."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from speculant_graph.types import Draft, Proposal


class DenseDistribution:
    """p as a row; short rows cost less as a list."""

    def __init__(self, probabilities):
        self.probabilities = np.asarray(probabilities, np.float64)
        self.cumulative = np.cumsum(self.probabilities).tolist()
        self.last_possible = max((i for i, p in enumerate(self.probabilities) if p > 0), default=0)

    def probabilities_of(self, token_ids):
        return self.probabilities[token_ids]

    def draw(self, number, token_ids, weights, scale):
        assert 0 <= number < 1
        assert len(token_ids) == len(weights)
        if len(token_ids) == 0:
            return self.choose(number)
        row = scale * self.probabilities
        row[token_ids] = weights
        assert row.min() >= 0
        cumulative = row.cumsum()
        assert cumulative[-1] > 0
        index = int(cumulative.searchsorted(number * cumulative[-1], side="right"))
        return index if index < len(row) else int(row.nonzero()[0][-1])

    def choose(self, number):
        return min(bisect_right(self.cumulative, number * self.cumulative[-1]), self.last_possible)


class DenseTarget:
    """A model that is a row per node of a draft, the root's first, with one number per depth for its own choices."""

    def __init__(self, draft, rows, choice_numbers=()):
        self.rows = [row if isinstance(row, DenseDistribution) else DenseDistribution(row) for row in rows]
        self.choice_numbers = choice_numbers
        self.depths = depths_of(draft.parents)
        self.choices = 0

    def choice_after(self, node):
        self.choices += 1
        return self.rows[node].choose(self.choice_numbers[self.depths[node]])

    def after(self, node):
        return self.rows[node]


def depths_of(parents):
    """Depth of the root and of every node."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return depths


def proposal_of(q):
    """The sparse form of a row of float32 probabilities."""
    row = np.asarray(q, np.float32)
    support = np.nonzero(row)[0]
    return Proposal(support.astype(np.uint32), row[support])


def chain_of(token_ids, q=None):
    """A chain, with q as rows; without rows, of unknown origin."""
    return Draft(
        tuple(token_ids),
        tuple(range(len(token_ids))),
        proposals=() if q is None else tuple(proposal_of(row) for row in q[: len(token_ids)]),
    )


def dense_rows(draft, size):
    """q of every node as rows; of a token without q, that it was certain."""
    rows = np.zeros((len(draft), size))
    for node, token_id in enumerate(draft.token_ids):
        if draft.proposals:
            rows[node, draft.proposals[node].token_ids] = draft.proposals[node].probabilities
        else:
            rows[node, token_id] = 1
    return rows


def block_ratios(draft, p, q):
    """a of every length from 0 to that of the draft."""
    ratios = [1.0]
    for node, x in enumerate(draft.token_ids):
        ratios.append(min(1.0, ratios[-1] * p[node][x] / q[node][x]))
    return ratios


def block_pass_probabilities(draft, p):
    """h of every length from 1 to that of the draft."""
    q = dense_rows(draft, len(p[0]))
    ratios = block_ratios(draft, p, q)
    passing = []
    for length in range(1, len(draft)):
        mass = np.maximum(ratios[length] * p[length] - q[length], 0).sum()
        total = mass + 1 - ratios[length]
        passing.append(mass / total if total > 0 else 1.0)
    return [*passing, ratios[-1]] if len(draft) else []
