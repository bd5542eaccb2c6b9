"""The examples of the document on block verification (Leviathan 2024; Sun et al. 2024, arXiv 2403.10444).

Its two programs run here as they are written, but for the source of chance: instead of one random outcome, all outcomes
are found, each with its probability. The rules *token* and *block* are held against them, draft by draft.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from speculant_verifier.rules import RULES
from support.rule_oracles import chain_of

A_OR_B = np.array([1 / 3, 2 / 3]), np.float32([2 / 3, 1 / 3])
"""The document's example: p and q of two tokens, whatever came before."""


class Chance:
    """One way through a random program; remembers the other ways."""

    def __init__(self, way):
        self.way, self.others, self.taken, self.probability = way, [], [], 1.0

    def choose(self, weights):
        """Return an index, each with the probability that its weight has."""
        shares = np.asarray(weights, np.float64) / np.sum(weights)
        step = len(self.taken)
        if step < len(self.way):
            index = self.way[step]
        else:
            index, *rest = np.flatnonzero(shares).tolist()
            self.others += [(*self.taken, other) for other in rest]
        self.taken.append(index)
        self.probability *= shares[index]
        return index

    def choices(self, population, weights):
        """As of Python's module random: a list of one."""
        return [population[self.choose(weights)]]


class Uniform:
    """A number drawn from [0, 1), which decides when it is compared; ``scale`` times it."""

    def __init__(self, chance, scale=1.0):
        self.chance, self.scale = chance, scale

    def __mul__(self, factor):
        return Uniform(self.chance, self.scale * factor)

    def __lt__(self, bound):
        below = min(1.0, float(bound) / self.scale) if self.scale > 0 else float(bound > 0)
        return self.chance.choose([1 - below, below]) == 1

    def __gt__(self, bound):
        return not self < bound


def every_outcome(program):
    """Return the probability of everything that a program of chance can return."""
    found, ways = defaultdict(float), [()]
    while ways:
        chance = Chance(ways.pop())
        found[program(chance)] += chance.probability
        ways += chance.others
    return dict(found)


def token_verify(ps, qs, xs, random, choices):
    qs.append(np.zeros(V := len(qs[0])))
    for n, xi in enumerate(xs + [0]):  # noqa: RUF005
        if random() > ps[n][xi] / qs[n][xi]:
            break
    w = np.maximum(0, ps[n] - qs[n])
    return xs[:n] + [choices(range(V), w)]  # noqa: RUF005


def block_verify(ps, qs, xs, random, choices):
    qs.append(np.zeros(V := len(qs[0])))
    s, a, voc = None, 1, range(V)
    for n, xi in enumerate(xs + [0]):  # noqa: RUF005
        seqs = [xs[:n] + [t] for t in voc] + [s]  # noqa: RUF005
        w = np.maximum(0, ps[n] * a - qs[n])
        s = choices(seqs, np.append(w, 1 - a))
        a = min(1, ps[n][xi] * a / qs[n][xi])
    return s


DOCUMENT = {"token": token_verify, "block": block_verify}


def flat(nested):
    """As written, what ``choices`` returns is a list in the list."""
    return (nested,) if isinstance(nested, int) else tuple(token for part in nested for token in flat(part))


def outcomes_of_document(name, p, q, tokens):
    def program(chance):
        rows = [row.astype(np.float64) for row in q]
        with np.errstate(divide="ignore", invalid="ignore"):  # the last q is of no token
            return flat(DOCUMENT[name](list(p), rows, list(tokens), lambda: Uniform(chance), chance.choices))

    return every_outcome(program)


class Target:
    """p of every node, drawn from by chance."""

    def __init__(self, p, chance):
        self.p, self.chance = p, chance

    def after(self, node):
        return Distribution(self.p[node], self.chance)


class Distribution:
    def __init__(self, p, chance):
        self.p, self.chance = p, chance

    def probabilities_of(self, token_ids):
        return self.p[token_ids]

    def draw(self, number, token_ids, weights, scale):
        assert isinstance(number, Uniform)
        row = scale * self.p
        row[token_ids] = weights
        return self.chance.choose(row)


def outcomes_of_rule(name, p, q, tokens):
    def program(chance):
        return RULES[name](chain_of(tokens, q), Target(p, chance), lambda: Uniform(chance)).token_ids

    return every_outcome(program)


def drafts_of(q, size):
    """Every draft with its probability and its rows of q; q is a function of the tokens before."""
    for tokens in itertools.product(range(len(q(()))), repeat=size):
        rows = [q(tokens[:length]) for length in range(size)]
        probability = float(np.prod([row[token] for row, token in zip(rows, tokens, strict=True)], dtype=np.float64))
        if probability > 0:
            yield tokens, rows, probability


def mean_accepted(outcomes_of, name, size=2):
    """Expected accepted tokens in the document's example."""
    p, q = A_OR_B
    return sum(
        probability * share * (len(emitted) - 1)
        for tokens, rows, probability in drafts_of(lambda _: q, size)
        for emitted, share in outcomes_of(name, [p] * (size + 1), rows, tokens).items()
    )


@pytest.mark.parametrize("outcomes_of", [outcomes_of_document, outcomes_of_rule], ids=["document", "rule"])
@pytest.mark.parametrize(("name", "expected"), [("token", 10 / 9), ("block", 11 / 9)])
def test_expected_accepted_tokens_of_a_block_of_two(name, expected, outcomes_of):
    """10/9 and 11/9; the proposal's float32 leaves seven digits."""
    assert mean_accepted(outcomes_of, name) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_example_at_other_block_sizes(size):
    """Token verification accepts a geometric number, with alpha = E min(p, q) = 2/3; block never fewer."""
    alpha = 2 / 3
    assert mean_accepted(outcomes_of_rule, "token", size) == pytest.approx(
        (1 - alpha ** (size + 1)) / (1 - alpha) - 1, abs=1e-6
    )
    better = mean_accepted(outcomes_of_rule, "block", size) - mean_accepted(outcomes_of_rule, "token", size)
    assert better > 0.1 if size > 1 else better == pytest.approx(0, abs=1e-6)


def world(seed):
    """p and q of three tokens after every prefix, some of them 0."""
    generator = np.random.default_rng(seed)
    prefixes = [prefix for size in range(4) for prefix in itertools.product(range(3), repeat=size)]
    p = {prefix: generator.dirichlet(np.full(3, 0.8)) for prefix in prefixes}
    for prefix in prefixes[::4]:
        p[prefix][generator.integers(3)] = 0
        p[prefix] /= p[prefix].sum()
    q = {prefix: generator.dirichlet(np.full(3, 0.8)).astype(np.float32) for prefix in prefixes}
    return p, q


def same(outcomes, expected):
    return all(
        outcomes.get(tokens, 0.0) == pytest.approx(expected.get(tokens, 0.0), abs=1e-6)
        for tokens in {*outcomes, *expected}
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["token", "block"])
def test_a_rule_does_with_every_draft_what_the_document_does(name, seed):
    p, q = world(seed)
    for tokens, rows, _ in drafts_of(q.__getitem__, 3):
        p_rows = [p[tokens[:length]] for length in range(4)]
        own = outcomes_of_rule(name, p_rows, rows, tokens)
        assert sum(own.values()) == pytest.approx(1)
        assert same(own, outcomes_of_document(name, p_rows, rows, tokens)), tokens


@pytest.mark.parametrize("name", ["token", "block"])
def test_the_first_two_tokens_have_the_models_distribution(name):
    """Exactly, over all drafts of two; where one token is emitted, the model draws the second."""
    p, q = world(7)
    joint = np.zeros((3, 3))
    for tokens, rows, probability in drafts_of(q.__getitem__, 2):
        p_rows = [p[tokens[:length]] for length in range(3)]
        for emitted, share in outcomes_of_rule(name, p_rows, rows, tokens).items():
            second = np.eye(3)[emitted[1]] if len(emitted) > 1 else p[emitted]
            joint[emitted[0]] += probability * share * second
    assert np.allclose(joint, [p[()][first] * p[(first,)] for first in range(3)], atol=1e-6)


def test_the_comparison_can_fail():
    """The other rule's outcomes are others, in the document's example and in most worlds."""
    p, q = A_OR_B
    differ = [
        tokens
        for tokens, rows, _ in drafts_of(lambda _: q, 2)
        if not same(
            outcomes_of_rule("token", [p] * 3, rows, tokens), outcomes_of_document("block", [p] * 3, rows, tokens)
        )
    ]
    assert (0, 1) in differ
