"""Small worlds in which the distribution of everything that a rule can emit is known: four tokens, every p and q
depends on all tokens before. Drafts are drawn by numpy for all trials at once, and rules walk them one by one.

A context is a number: the empty one is 0, and the context c followed by token t is ``4 c + 1 + t``.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from speculant_graph.random_stream import gumbel_noise
from speculant_graph.types import Draft
from support.rule_oracles import DenseDistribution, depths_of, proposal_of

SIZE = 4
LENGTH = 4
"""Tokens of which the joint distribution is looked at."""
_FIRST = [0, 1, 5, 21, 85]
"""First context of each length."""


class World:
    """p and q of every context of up to three tokens.

    Every third p has a token without probability, and every fifth p equals q.

    Args:
        seed: of everything.
        kind: 'dense' q, or 'sparse' ones of one to three tokens, some of which p rules out; 'far' or 'far sparse' if
            they have nothing to do with p, so that block often keeps a part of a draft whose ratio is below 1.
    """

    def __init__(self, seed: int, kind: str):
        generator = np.random.default_rng(seed)
        count = _FIRST[LENGTH]
        self.p = generator.dirichlet(np.full(SIZE, 0.8), count)
        self.q = generator.dirichlet(np.full(SIZE, 0.8), count)
        if "far" not in kind:
            self.q = (self.p + self.q) / 2
        for context in range(count):
            if context % 3 == 0:
                self.p[context, generator.integers(SIZE)] = 0
            if "sparse" in kind:
                self.q[context, generator.permutation(SIZE)[: 1 + context % 3]] = 0
            if context % 5 == 4:
                self.q[context] = self.p[context]
        self.p /= self.p.sum(1, keepdims=True)
        self.q = (self.q / self.q.sum(1, keepdims=True)).astype(np.float32)
        self.proposals = [proposal_of(row) for row in self.q]
        self.distributions = [DenseDistribution(row) for row in self.p]
        with np.errstate(divide="ignore"):
            self.log_p, self.log_q = np.log(self.p), np.log(self.q.astype(np.float64))

    def joint(self, length: int):
        """Probability of every sequence of a length, by context number."""
        joint = np.ones(1)
        for size in range(length):
            joint = (joint[:, None] * self.p[_FIRST[size] : _FIRST[size + 1]]).ravel()
        return joint

    def sample(self, contexts, generator):
        """One token from q of each context."""
        return _sample(self.q[contexts].astype(np.float64), generator)

    def complete(self, token_ids, numbers, length: int) -> int:
        """The cell of a sequence that begins with tokens and is completed from p."""
        context = 0
        for position in range(length):
            if position < len(token_ids):
                token = token_ids[position]
            else:
                distribution = self.distributions[context]
                token = min(bisect_right(distribution.cumulative, numbers[position]), distribution.last_possible)
            context = 4 * context + 1 + token
        return context - _FIRST[length]


class WorldTarget:
    """The model at the nodes of one draft; its own choices come from a number, or from noise, per depth."""

    def __init__(self, world: World, draft: Draft, choice_numbers, noise=None):
        self.world, self.choice_numbers, self.noise = world, choice_numbers, noise
        self.contexts = [0]
        for token, parent in zip(draft.token_ids, draft.parents, strict=True):
            self.contexts.append(4 * self.contexts[parent] + 1 + token)
        self.parents = draft.parents

    def after(self, node):
        return self.world.distributions[self.contexts[node]]

    def choice_after(self, node):
        depth = depths_of(self.parents)[node]
        if self.noise is not None:
            return int((self.world.log_p[self.contexts[node]] + self.noise[depth]).argmax())
        return self.world.distributions[self.contexts[node]].choose(self.choice_numbers[depth])


@dataclass
class Trials:
    """What came of many walks."""

    p_value: float
    accepted: float
    """Mean number of accepted tokens."""


def _sample(rows, generator):
    cumulative = rows.cumsum(1)
    above = cumulative > generator.random(len(rows))[:, None] * cumulative[:, -1:]
    return above.argmax(1)


def chains(world: World, count: int, seed: int, how: str, lengths: str, trim_below: float = 0.0, noise=None):
    """Drafts of up to three tokens.

    Args:
        world: p and q.
        count: number of drafts.
        seed: of the draws.
        how: 'sampled' from q and with it, 'unknown' sampled from q and without it, 'certain' the most probable of q,
            'gumbel' the most probable of log q plus noise, without it.
        lengths: 'fixed', 'random', or 'stopping': after a token of low q, which is kept.
        trim_below: drop tokens of lower q, and all after them. This must not be done.
        noise: what is added to log q.
    """
    generator = np.random.default_rng(seed)
    contexts, columns, kept = np.zeros(count, np.int64), [], np.full(count, LENGTH - 1)
    for position in range(LENGTH - 1):
        if how == "certain":
            tokens = world.q[contexts].argmax(1)
        elif how == "gumbel":
            tokens = (world.log_q[contexts] + noise[:, position]).argmax(1)
        else:
            tokens = world.sample(contexts, generator)
        drawn = world.q[contexts, tokens]
        kept = np.where((drawn < trim_below) & (kept > position), position, kept)
        if lengths == "stopping":
            kept = np.where((drawn < 0.3) & (kept > position), position + 1, kept)
        columns.append(tokens)
        contexts = 4 * contexts + 1 + tokens
    if lengths == "random":
        kept = np.minimum(kept, generator.integers(0, LENGTH, count))
    for row, size in zip(np.stack(columns, 1).tolist(), kept.tolist(), strict=True):
        token_ids = tuple(row[:size])
        proposals, context = [], 0
        if how == "sampled":
            for token in token_ids:
                proposals.append(world.proposals[context])
                context = 4 * context + 1 + token
        yield Draft(token_ids, tuple(range(size)), proposals=tuple(proposals))


def trees(world: World, count: int, seed: int, replace: bool, lengths: str, with_proposals: bool = True):
    """Trees of depth 2 and width 2, siblings drawn from the same q, independently or without replacement.

    Args:
        world: p and q.
        count: number of drafts.
        seed: of the draws.
        replace: draw independently.
        lengths: 'fixed', or 'random' widths and depths, chosen before anything is drawn.
        with_proposals: send q along.
    """
    generator = np.random.default_rng(seed)

    def pair(contexts):
        first = world.sample(contexts, generator)
        rows = world.q[contexts].astype(np.float64)
        if not replace:
            rows[np.arange(count), first] = 0
        is_possible = rows.sum(1) > 0
        return first, np.where(is_possible, _sample(np.where(is_possible[:, None], rows, 1.0), generator), -1)

    roots = pair(np.zeros(count, np.int64))
    grandchildren = [pair(1 + np.maximum(tokens, 0)) for tokens in roots]
    table = np.stack([*roots, *grandchildren[0], *grandchildren[1]], 1)
    if lengths == "random":
        widths = generator.integers(0, 3, (count, 3))
        widths[:, 0] = generator.integers(1, 3, count)
        table[np.stack([widths <= 0, widths <= 1], 2).reshape(count, 6)] = -1  # later siblings only
    for first, second, *below in table.tolist():
        token_ids, parents, contexts = [], [], []
        for token, children in ((first, below[:2]), (second, below[2:])):
            if token < 0:
                continue
            token_ids.append(token)
            parents.append(0)
            contexts.append(0)
            position = len(token_ids)
            for child in children:
                if child >= 0:
                    token_ids.append(child)
                    parents.append(position)
                    contexts.append(1 + token)
        proposals = tuple(world.proposals[context] for context in contexts) if with_proposals else ()
        yield Draft(tuple(token_ids), tuple(parents), proposals=proposals)


def noise_of(count: int):
    """Noise of every token of every trial and position, shape ``[count, LENGTH, SIZE]``."""
    tokens = np.arange(SIZE)
    positions = range(count * LENGTH)
    return np.array([gumbel_noise(17, position, tokens) for position in positions]).reshape(count, LENGTH, SIZE)


def run(rule, world: World, drafts, count: int, length: int, seed: int, noise=None, reuse: bool = False) -> Trials:
    """Verify drafts and compare the joint distribution of the first tokens with the model's own.

    Args:
        rule: the rule.
        world: p and q.
        drafts: ``count`` drafts.
        count: number of trials.
        length: tokens looked at.
        seed: of all numbers, other than the drafts'.
        noise: where the model chooses by noise.
        reuse: give a rule the same number again and again. This must not be done.
    """
    generator = np.random.default_rng(seed)
    tails = generator.random((count, length)).tolist()
    choices = generator.random((count, length)).tolist()
    numbers = iter(generator.random(16 * count).tolist())
    cells = np.zeros(SIZE**length, np.int64)
    accepted = 0
    for index, draft in enumerate(drafts):
        target = WorldTarget(world, draft, choices[index], None if noise is None else noise[index])
        number = choices[index][0]
        verdict = rule(draft, target, (lambda value=number: value) if reuse else numbers.__next__)
        assert len(verdict.token_ids) == len(verdict.path) + 1
        cells[world.complete(verdict.token_ids, tails[index], length)] += 1
        accepted += len(verdict.path)
    assert index == count - 1
    return Trials(_p_value(cells, count * world.joint(length)), accepted / count)


def _p_value(observed, expected) -> float:
    """Chi-square, with the rarest cells taken together; 0 if anything impossible was seen."""
    if observed[expected == 0].any():
        return 0.0
    observed, expected = observed[expected > 0], expected[expected > 0]
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1))
