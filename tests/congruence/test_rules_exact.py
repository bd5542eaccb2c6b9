"""Rules preserve the model's distribution exactly, in small worlds where every random outcome can be enumerated.

Known wrong rules and drafters must change the distribution. Drafts are drawn, verified and completed as random
programs, and every outcome is found with its probability. The same holds for the two programs of the document on block
verification (Leviathan 2024; Sun et al. 2024, arXiv 2403.10444). *token* and *block* are compared with them, draft by
draft.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from speculant_graph.types import Draft
from speculant_verifier.rules import RULES, Verdict
from support.chance import Uniform, every_outcome
from support.rule_oracles import block_pass_probabilities, chain_of, dense_rows, proposal_of

SIZE = 3
"""Size of the vocabulary."""
ROUNDING, WRONG = 1e-6, 1e-3
"""Largest error of a probability under a correct rule (q is float32), and least error under a wrong one."""
NOTHING = (np.zeros(0, np.int64), np.zeros(0), 1.0)


class World:
    """p and q of every context of up to three tokens.

    Every third p has a token without probability, every fifth p equals q.

    Args:
        seed: random seed.
        kind: 'dense', or 'sparse' for a q of one or two tokens, some with p = 0. With 'far', q differs much from p, so
            that *block* often accepts a prefix whose ratio is below 1.
    """

    def __init__(self, seed, kind):
        generator = np.random.default_rng(seed)
        self.p, self.q = {}, {}
        contexts = [each for size in range(4) for each in itertools.product(range(SIZE), repeat=size)]
        for index, context in enumerate(contexts):
            p, q = generator.dirichlet(np.full(SIZE, 0.8), 2)
            if "far" not in kind:
                q = (p + q) / 2
            if index % 3 == 1:
                p[generator.integers(SIZE)] = 0
            if "sparse" in kind:
                q[generator.permutation(SIZE)[: 1 + index % 2]] = 0
            if index % 5 == 4:
                q = p
            self.p[context], self.q[context] = p / p.sum(), (q / q.sum()).astype(np.float32)

    def completed(self, tokens, length):
        """Return the joint distribution of the tokens after ``tokens``, up to a total length."""
        if len(tokens) == length:
            return np.ones(())
        return np.stack([p * self.completed((*tokens, token), length) for token, p in enumerate(self.p[tokens])])


@cache
def world(kind, seed=2):
    return World(seed, kind)


class Model:
    """A model that samples from p; its choice after a context is fixed once made."""

    def __init__(self, world, chance):
        self.world, self.chance, self.chosen = world, chance, {}

    def choice(self, context):
        if context not in self.chosen:
            self.chosen[context] = self.chance.choose(self.world.p[context])
        return self.chosen[context]


class Target:
    """The model at the nodes of a draft."""

    def __init__(self, model, draft):
        self.model, self.contexts = model, [()]
        for token, parent in zip(draft.token_ids, draft.parents, strict=True):
            self.contexts.append((*self.contexts[parent], token))

    def choice_after(self, node):
        return self.model.choice(self.contexts[node])

    def after(self, node):
        return Distribution(self.p(node))

    def p(self, node):
        return self.model.world.p[self.contexts[node]]


class Distribution:
    def __init__(self, p):
        self.p = p

    def probabilities_of(self, token_ids):
        return self.p[token_ids]

    def draw(self, number, token_ids, weights, scale):
        row = scale * self.p
        row[token_ids] = weights
        return number.use().choose(row)


def chain(model, how, lengths, trim_below=0.0):
    """Draw a chain of up to three tokens.

    Args:
        model: the model, with the source of randomness.
        how: 'sampled': sampled from q, with q in the draft. 'unknown': sampled from q, without q in the draft.
            'certain': the most probable token of q. 'coupled': the model's choice in half of the cases, as with shared
            noise.
        lengths: 'fixed', 'random', or 'stopping' to end after a token of low q, which is kept.
        trim_below: drop the first token of lower q and all tokens after it; a drafter must not do this.
    """
    chance, tokens, rows = model.chance, (), []
    size = 3 if lengths != "random" else chance.choose([1, 1, 1, 1])
    while len(tokens) < size:
        q = model.world.q[tokens]
        if how == "certain":
            token = int(q.argmax())
        elif how == "coupled" and chance.choose([1, 1]):
            token = model.choice(tokens)
        else:
            token = chance.choose(q)
        if q[token] < trim_below:
            break
        tokens, rows = (*tokens, token), [*rows, q]
        if lengths == "stopping" and q[token] < 0.4:
            break
    return chain_of(tokens, rows if how == "sampled" else None)


def tree(model, replace, lengths):
    """Draw a tree of a shape chosen beforehand; siblings come from one q, independently or without replacement."""
    shapes = [(0, 0, 1, 1), (0, 0, 2), (0, 1, 1), (0, 0, 0)]
    shape = shapes[0 if lengths == "fixed" else model.chance.choose([1, 1, 1, 1])]
    tokens, contexts = [], [()]
    for node, parent in enumerate(shape):
        weights = model.world.q[contexts[parent]].astype(np.float64)
        if not replace:
            weights[[tokens[older] for older in range(node) if shape[older] == parent]] = 0
        if not weights.any():
            break
        tokens.append(model.chance.choose(weights))
        contexts.append((*contexts[parent], tokens[-1]))
    parents = shape[: len(tokens)]
    proposals = tuple(proposal_of(model.world.q[contexts[parent]]) for parent in parents)
    return Draft(tuple(tokens), parents, proposals=proposals)


def error(rule, kind, draw, length=4):
    """Return the largest error, over two worlds, of the joint distribution of a rule's first ``length`` tokens."""
    errors = []
    for own in (world(kind), world(kind, 3)):

        def program(chance, own=own):
            model = Model(own, chance)
            draft = draw(model)
            verdict = rule(draft, Target(model, draft), lambda: Uniform(chance))
            assert len(verdict.token_ids) == len(verdict.path) + 1
            assert [draft.parents[node] for node in verdict.path] == [0, *(node + 1 for node in verdict.path)][:-1]
            assert [draft.token_ids[node] for node in verdict.path] == list(verdict.token_ids[:-1])
            return tuple(verdict.token_ids)

        found = np.zeros((SIZE,) * length)
        for tokens, probability in every_outcome(program).items():
            found[tokens] += probability * own.completed(tokens, length)
        errors.append(np.abs(found - own.completed((), length)).max())
    return max(errors)


@pytest.mark.parametrize("lengths", ["fixed", "random", "stopping"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "far", "far sparse"])
def test_chains(kind, lengths):
    ways = {
        "sampled": ("token", "block"),
        "certain": ("token", "block", "nasd"),
        "unknown": ("token", "block", "follow"),
    }
    ways |= {"coupled": ("follow", "gumbel", "nasd")}
    for how, rules in ways.items():
        for rule in rules:
            assert error(RULES[rule], kind, lambda model, how=how: chain(model, how, lengths)) < ROUNDING, (how, rule)


@pytest.mark.parametrize("lengths", ["fixed", "random"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "far sparse"])
def test_trees(kind, lengths):
    for rule, replace in (("tree-wor", False), ("tree-wor", True), ("tree-iid", True), ("follow", False)):
        assert error(RULES[rule], kind, lambda model, replace=replace: tree(model, replace, lengths), 3) < ROUNDING, (
            rule
        )


# Wrong rules and drafters.


def drawing_again(name):
    """Return a wrong rule that samples from p itself after a rejection."""

    def rule(draft, target, numbers):
        verdict = RULES[name](draft, target, numbers)
        size = len(verdict.path)
        if size == len(draft):
            return verdict
        return Verdict(verdict.path, (*verdict.token_ids[:size], target.after(size).draw(numbers(), *NOTHING)))

    return rule


def of_length(draft, target, numbers, length):
    """Accept ``length`` tokens of a draft, and sample the next one from max(p - q, 0)."""
    weights = target.p(length)
    if length < len(draft) and (left := np.maximum(weights - dense_rows(draft, SIZE)[length], 0)).sum() > ROUNDING:
        weights = left
    own = target.after(length).draw(numbers(), np.arange(SIZE), weights, 1.0)
    return Verdict(tuple(range(length)), (*draft.token_ids[:length], own))


def block_with_the_remainder_of_token(draft, target, numbers):
    passing = block_pass_probabilities(draft, [target.p(node) for node in range(len(draft) + 1)])
    passed = [size for size, probability in enumerate(passing, 1) if numbers() < probability]
    return of_length(draft, target, numbers, max(passed, default=0))


def token_with_the_lengths_of_block(draft, target, numbers):
    """Test every token independently, and accept the longest prefix whose last token passes."""
    q = dense_rows(draft, SIZE)
    passed = [
        node + 1 for node, token in enumerate(draft.token_ids) if numbers() * q[node][token] < target.p(node)[token]
    ]
    return of_length(draft, target, numbers, max(passed, default=0))


@pytest.mark.parametrize(
    ("rule", "how", "kind", "trim_below"),
    [
        (drawing_again("token"), "sampled", "sparse", 0.0),
        (drawing_again("token"), "certain", "dense", 0.0),
        (drawing_again("nasd"), "certain", "dense", 0.0),
        (RULES["token"], "sampled", "sparse", 0.4),
        (RULES["block"], "sampled", "sparse", 0.4),
        (block_with_the_remainder_of_token, "sampled", "far", 0.0),
        (token_with_the_lengths_of_block, "sampled", "far", 0.0),
    ],
)
def test_wrong_chains_are_found_out(rule, how, kind, trim_below):
    assert error(rule, kind, lambda model: chain(model, how, "fixed", trim_below)) > WRONG


@pytest.mark.parametrize("lengths", ["fixed", "random"])
def test_independent_verification_of_siblings_without_replacement_is_found_out(lengths):
    assert error(RULES["tree-iid"], "dense", lambda model: tree(model, False, lengths), 3) > WRONG


# The document's programs and its example.


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
    """Flatten the document's result, in which ``choices`` leaves a nested list."""
    return (nested,) if isinstance(nested, int) else tuple(token for part in nested for token in flat(part))


def outcomes_of_document(name, world, tokens):
    def program(chance):
        p = [world.p[tokens[:length]] for length in range(len(tokens) + 1)]
        q = [world.q[tokens[:length]].astype(np.float64) for length in range(len(tokens))]

        def choices(population, weights):
            return [population[chance.choose(weights)]]

        with np.errstate(divide="ignore", invalid="ignore"):  # the document appends a q of zeros
            return flat(DOCUMENT[name](p, q, list(tokens), lambda: Uniform(chance), choices))

    return every_outcome(program)


def outcomes_of_rule(name, world, tokens):
    draft = chain_of(tokens, [world.q[tokens[:length]] for length in range(len(tokens))])

    def program(chance):
        return RULES[name](draft, Target(Model(world, chance), draft), lambda: Uniform(chance)).token_ids

    return every_outcome(program)


def drafts_of(world, size):
    """Yield every chain with positive probability."""
    for tokens in itertools.product(range(SIZE), repeat=size):
        if all(world.q[tokens[:index]][token] > 0 for index, token in enumerate(tokens)):
            yield tokens


@pytest.mark.parametrize("kind", ["dense", "sparse", "far"])
@pytest.mark.parametrize("name", ["token", "block"])
def test_a_rule_does_with_every_draft_what_the_document_does(name, kind):
    for tokens in drafts_of(world(kind), 3):
        own, theirs = outcomes_of_rule(name, world(kind), tokens), outcomes_of_document(name, world(kind), tokens)
        assert max(abs(own.get(key, 0.0) - theirs.get(key, 0.0)) for key in {*own, *theirs}) < ROUNDING, tokens
