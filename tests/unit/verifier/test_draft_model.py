"""The parts of the draft-model drafter: reliability, trees, price, and errors."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.budget import StepBudget
from speculant_graph.config import DraftModelConfig, VerifierConfig
from speculant_graph.errors import TokenizerMismatchError
from speculant_graph.types import Draft
from speculant_verifier.draft_model.draft_budget import LEAST_GAIN, DraftPrice
from speculant_verifier.draft_model.factory import load_draft_model
from speculant_verifier.draft_model.tree import DraftTree, Features, Reliability
from speculant_verifier.speculation import CostPoint, CostTable, ObservedCosts
from support.draft_models import flat
from support.tiny_models import tiny_gpt_oss

ROOT = Features(is_root=True, confidence=0.6)


def learned(num_tokens, right_of_ngrams, right_of_model, seed=0):
    """Return the reliability learned from many tokens on which n-grams and model disagree."""
    generator = random.Random(seed)
    reliability = Reliability()
    for _ in range(num_tokens):
        of_ngrams, of_model = generator.random() < right_of_ngrams, generator.random() < right_of_model
        truth = generator.randrange(100)
        ngrams = [(truth if of_ngrams else truth + 100, 0.6)]
        row = [(truth if of_model else truth + 200, 0.6), (truth + 300, 0.1)]
        reliability.learn(ngrams, row, truth, ROOT, is_drafted=of_ngrams or of_model)
    return reliability


@pytest.mark.parametrize(("of_ngrams", "of_model"), [(0.9, 0.2), (0.2, 0.9), (0.6, 0.6)])
def test_reliability_is_that_of_either_source(of_ngrams, of_model):
    reliability = learned(600, of_ngrams, of_model)
    mixed = {each.token_id: each.probability for each in reliability.mix([(1, 0.6)], [(2, 0.6), (3, 0.1)])}
    if of_ngrams != of_model:
        assert (mixed[1] > mixed.get(2, 0.0)) == (of_ngrams > of_model)
    # They disagree, so at most one of them is right.
    either = 1.0 - of_ngrams * of_model
    assert mixed[1] == pytest.approx(of_ngrams * (1.0 - of_model) / either, abs=0.1), "predicted as often as realised"
    assert mixed.get(2, 0.0) == pytest.approx(of_model * (1.0 - of_ngrams) / either, abs=0.1)


@st.composite
def drafts(draw):
    """Trees with path probabilities, parents first."""
    parents, probabilities = [], []
    for node in range(draw(st.integers(0, 7))):
        parents.append(draw(st.integers(0, node)))
        above = probabilities[parents[-1] - 1] if parents[-1] else 1.0
        probabilities.append(above * draw(st.sampled_from([1.0, 0.5, 0.3, 0.9])))
    return Draft(tuple(range(len(parents))), tuple(parents), tuple(probabilities))


@given(drafts(), st.integers(1, 8), st.randoms(use_true_random=False))
def test_the_best_nodes_are_the_most_probable_paths(draft, budget, generator):
    tree, reliability = DraftTree(draft), Reliability()
    for _ in range(2):
        opened = tree.open_nodes(reliability, tree.best(budget), 24)
        nodes = [node for node, _ in opened[:3]]
        tree.write(nodes, 0)
        for node in nodes:
            row = [(100 + generator.randrange(9), 0.5 * generator.random()) for _ in range(3)]
            tree.expand(node, sorted(dict(row).items(), key=lambda each: -each[1]), reliability, 8)
        tree.update()
    best = tree.best(budget)
    paths = sorted((node.path for node in tree.nodes[1:] if node.path > 0.0), reverse=True)
    assert [tree.nodes[node].path for node in best] == paths[:budget]
    made = tree.draft(best, "tree", 7)
    assert all(parent <= node for node, parent in enumerate(made.parents))
    for node, parent in enumerate(made.parents):
        above = made.path_probabilities[parent - 1] if parent else 1.0
        assert made.path_probabilities[node] <= above + 1e-9
    for siblings in itertools.groupby(sorted(zip(made.parents, made.token_ids, strict=True))):
        assert len(list(siblings[1])) == 1, "no token twice below a node"


def obvious_choice(target, draft, gains, wanted, pending, rate):
    """Return every choice's value minus its time; tries all widths and numbers of rows one by one."""
    rows = len(gains)

    def seconds(width):
        return float(target.seconds(rows, rows * (width + 1))[rows * (width + 1)])

    def worth(width):
        return sum(sum(row[:width]) for row in gains) - rate * seconds(width)

    now = max(range(max(map(len, gains)) + 1), key=worth)
    values = {(0, 0): 0.0}
    ranked = sorted((row for row in wanted.values() if row), key=lambda row: -row[0])
    for count in {min(2**power, len(ranked)) for power in range(3)} - {0}:
        for nodes in range(1, min(16, max(map(len, ranked[:count]))) + 1):
            extra = sum(sum(row[:nodes]) for row in ranked[:count])
            tokens = count * (max(1, min(pending, 8)) + nodes - 1)
            passes = float(draft.seconds(count, tokens)[tokens])
            taken = passes + seconds(now + 1) - seconds(now)
            values[nodes, count] = extra - rate * (taken + LEAST_GAIN * (seconds(now + 1) + passes))
    return values


probabilities = st.lists(st.floats(0.01, 1.0), max_size=6)


@given(
    st.lists(st.tuples(probabilities, probabilities), min_size=1, max_size=4),
    st.integers(0, 20), st.floats(0.01, 2.0), st.floats(0.0, 0.3),
)  # fmt: skip
def test_the_price_is_that_of_everything_tried(rows, pending, draft_s, slope):
    gains = [sorted(row, reverse=True) for row, _ in rows]
    wanted = {index: row for index, (_, row) in enumerate(rows)}
    target, draft = flat(1.0, slope), flat(draft_s, slope / 4)
    budget = StepBudget(target)
    _, width, chosen = DraftPrice(budget, draft).choose(gains, wanted, pending)
    values = obvious_choice(target, draft, gains, wanted, pending, budget.prices(len(rows), 0).rate)
    assert values[width, len(chosen)] == pytest.approx(max(values.values()), abs=1e-9)
    assert all(wanted[row] for row in chosen)


def test_a_machine_that_has_become_slower_changes_the_price():
    table = CostTable((CostPoint(1, 1, 600.0), CostPoint(1, 2, 600.0)), 0)
    price = DraftPrice(StepBudget(flat(1.0, 0.0)), ObservedCosts(table))
    assert price.choose([[]], {0: [0.7]}, 1)[1:] == (1, [0])
    for _ in range(200):
        price.observe(1, 1, 1.6)
    assert float(price.pass_s(1, 1, 1)[-1]) == pytest.approx(1.6, abs=0.1)
    assert price.choose([[]], {0: [0.7]}, 1)[1:] == (0, [])


def test_a_model_with_another_tokenizer_is_refused(tmp_path):
    target = tiny_gpt_oss()
    folder = tmp_path / "other"
    other = tiny_gpt_oss(vocabulary_size=300)
    other.model.save_pretrained(folder)
    tokenizer = other._tokenizer
    tokenizer.add_tokens(["<|more|>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(TokenizerMismatchError):
        load_draft_model(DraftModelConfig(name=str(folder)), VerifierConfig(), target)
