"""A target with dense rows over the vocabulary, and the acceptance probabilities of block verification.

The probabilities follow directly from the formula.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from speculant_graph.types import Draft, Proposal


class DenseDistribution:
    """p as a dense row; a list of cumulative sums is faster for short rows."""

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
    """A target with one row per node of a draft, the root's first, and one random number per depth for its choices."""

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
    """Return the depths of the root and of every node."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return depths


def proposal_of(q):
    """Return a row of float32 probabilities in sparse form."""
    row = np.asarray(q, np.float32)
    support = np.nonzero(row)[0]
    return Proposal(support.astype(np.uint32), row[support])


def chain_of(token_ids, q=None):
    """Return a chain with dense rows of q; without rows, a chain without q."""
    return Draft(
        tuple(token_ids),
        tuple(range(len(token_ids))),
        proposals=() if q is None else tuple(proposal_of(row) for row in q[: len(token_ids)]),
    )


def dense_rows(draft, size):
    """Return q of every node as dense rows; a draft without q gets point masses."""
    rows = np.zeros((len(draft), size))
    for node, token_id in enumerate(draft.token_ids):
        if draft.proposals:
            rows[node, draft.proposals[node].token_ids] = draft.proposals[node].probabilities
        else:
            rows[node, token_id] = 1
    return rows


def block_ratios(draft, p, q):
    """Return a for every prefix length from 0 to the draft's length."""
    ratios = [1.0]
    for node, x in enumerate(draft.token_ids):
        ratios.append(min(1.0, ratios[-1] * p[node][x] / q[node][x]))
    return ratios


def block_pass_probabilities(draft, p):
    """Return h for every prefix length from 1 to the draft's length."""
    q = dense_rows(draft, len(p[0]))
    ratios = block_ratios(draft, p, q)
    passing = []
    for length in range(1, len(draft)):
        mass = np.maximum(ratios[length] * p[length] - q[length], 0).sum()
        total = mass + 1 - ratios[length]
        passing.append(mass / total if total > 0 else 1.0)
    return [*passing, ratios[-1]] if len(draft) else []
