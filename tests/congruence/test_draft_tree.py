"""Calibrated drafts equal the slow reference's, after any history of accepted, recycled and forgotten tokens."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from speculant_graph._core import NUM_MIXER_WEIGHTS, Calibration
from speculant_graph.config import DraftConfig
from speculant_graph.draft.mixing import mixer_weights
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.strategies import StrategyName
from speculant_graph.types import Draft, SequenceStep
from support.drafter_reference import SlowDrafter, level_worth
from support.graphs import graph_of, with_model
from support.mixer_reference import read_tables as read_weights
from support.neural_reference import NeuralTables, random_words, read_tables
from support.oracle import OracleGraph
from support.tree_reference import (
    LEARNED_CHAINS,
    LONG_ROW,
    MAX_MATCHES,
    MAX_WALK,
    SESSION_CHAINS,
    Tables,
    slot_of_rows,
)

VOCABULARY_SIZE = 40_000
SOURCES = ("corpus", "session", "learned", "recycled", "neural")

SHARING_A_SLOT = (
    5, next(token for token in range(6, VOCABULARY_SIZE) if slot_of_rows([token]) == slot_of_rows([5])),
)  # fmt: skip

configs = st.builds(
    DraftConfig,
    strategy=st.sampled_from(["tree", "adaptive", "greedy"]),
    sources=st.sets(st.sampled_from(SOURCES)).map(frozenset),
    max_depth=st.integers(1, 6),
    max_branches=st.sampled_from([1, 2, 3, 8, 64]),
    max_learned_tokens=st.sampled_from([0, 3, 60, 1_000, 100_000]),
)


def text_of(chance: random.Random, alphabet: Sequence[int], length: int, others: Sequence[list[int]] = ()) -> list[int]:
    """Return a text that repeats itself and other texts, with some changes."""
    text: list[int] = []
    while len(text) < length:
        source = chance.choice([text, text, *others])
        if not source or chance.random() < 0.3:
            text += chance.choices(alphabet, k=chance.randint(1, 4))
        else:
            start = chance.randrange(len(source))
            copied = source[start : start + chance.choice([2, 5, 12, 45])]
            if chance.random() < 0.4:
                copied[chance.randrange(len(copied))] = chance.choice(alphabet)
            text += copied
    return text[:length]


def joined(texts: Sequence[list[int]]) -> list[int]:
    return [*itertools.chain(*texts)]


def hash_of(key: Sequence[int], size: int) -> int:
    """Return the hash bucket of some tokens among ``size`` buckets, as in the core."""
    value = len(key)
    for token in reversed(key):
        value = (value ^ (token + 3)) % 2**64 * 0x1E3779B97F4A7C15 % 2**64
        value ^= ((value - (value >> 63 << 64)) >> 29) % 2**64
    return value >> 8 & size - 1


def is_crowded(text: Sequence[int], chains: Sequence[int]) -> bool:
    """Return whether a hash chain exceeds ``MAX_WALK`` and mixes positions of different tokens.

    The core counts such collisions towards its limit, and only the reference ignores them.
    """
    for length in chains:
        for size in (256, 512, 1_024, 2_048):
            buckets = defaultdict(list)
            for end in range(length, len(text) + 1) if len(text) > MAX_WALK else ():
                key = tuple(text[end - length : end])
                buckets[hash_of(key, size)].append(key)
            if any(len(keys) > MAX_WALK and len(set(keys)) > 1 for keys in buckets.values()):
                return True
    return False


@dataclass
class Pair:
    """The same sequences in the core and in the reference, which are compared at every step."""

    fast: SessionDrafter
    slow: SlowDrafter
    texts: dict[int, list[int]] = field(default_factory=dict)
    """Full text of every open sequence."""
    places: dict[int, int] = field(default_factory=dict)

    def open(self, number: int, text: list[int], prompt: int, tenant: str, learn: bool) -> None:
        for drafter in (self.fast, self.slow):
            drafter.open(number, tenant=tenant, learn=learn)
        self.texts[number], self.places[number] = text, 0
        if prompt:
            self.accept(number, prompt)

    def accept(self, number: int, num_tokens: int) -> None:
        token_ids = self.texts[number][self.places[number] :][:num_tokens]
        self.places[number] += len(token_ids)
        for drafter in (self.fast, self.slow):
            drafter.accept(number, token_ids)
        assert_same_tables(self.fast.calibration, self.slow.tables)

    def draft(
        self, number: int, strategy: StrategyName, budget: int, least: float = 0.0, *, omits_neural: bool = False
    ) -> Draft:
        options = DraftOptions(strategy, omit_neural=omits_neural)
        (draft,) = self.fast.draft([SequenceStep(number, (), budget, options=options, least_probability=least)])
        expected = self.slow.draft(number, strategy, budget, least, omits_neural=omits_neural)
        assert list(draft.token_ids) == [node.path[-1] for node in expected]
        assert list(draft.parents) == [node.parent for node in expected]
        assert list(draft.path_probabilities) == pytest.approx([node.probability for node in expected], abs=1e-9)
        assert_well_formed(draft, self.fast.config)
        ranks = [node.estimate * level_worth(len(node.path)) for node in expected]
        assert ranks == sorted(ranks, reverse=True)
        return draft

    def recycle(self, number: int, nodes: list[int], rows: list[list[int]]) -> None:
        width = max(map(len, rows), default=0)
        self.fast.recycle(number, nodes, [[*row, *[-1] * (width - len(row))] for row in rows])
        self.slow.recycle(number, nodes, rows)

    def close(self, number: int) -> None:
        for drafter in (self.fast, self.slow):
            drafter.close(number)
        del self.texts[number], self.places[number]


def pair_of(
    corpus: list[list[int]] | None,
    max_order: int,
    config: DraftConfig,
    *,
    boundaries: bool = True,
    window: int = 300,
    layers: int = 1,
    model_words: Sequence[UInt32Array | None] = (None,),
    mixer_words: NDArray[np.float32] | None = None,
) -> Pair:
    mixer = None if mixer_words is None else read_weights(mixer_words)
    if corpus is None:
        return Pair(
            SessionDrafter(None, config, calibration=Calibration(mixer_words), max_session_tokens=window),
            SlowDrafter((), config, max_session_tokens=window, mixer=mixer),
        )
    fast, slow = [], []
    models: list[NeuralTables | None] = []
    for layer in range(min(layers, len(corpus))):
        documents, order = corpus[layer::layers], max(1, max_order - layer)
        fast.append(graph_of(documents, order, VOCABULARY_SIZE, boundaries=boundaries))
        slow.append(OracleGraph(documents if boundaries else [joined(documents)], order))
        words = model_words[layer % len(model_words)]
        models.append(None if words is None else read_tables(words))
        fast[-1] = fast[-1] if words is None else with_model(fast[-1], words)
    return Pair(
        SessionDrafter(fast, config, calibration=Calibration(mixer_words), max_session_tokens=window),
        SlowDrafter(slow, config, VOCABULARY_SIZE, max_session_tokens=window, models=models, mixer=mixer),
    )


def assert_same_tables(fast: Calibration, slow: Tables) -> None:
    """Compare both drafters' tables; entries without visits in the reference must have initial values in the core."""
    escapes, first = (tables.weights.reshape(13, 11, 6, 3, 2) for tables in (fast, Calibration()))
    met = np.zeros(escapes.shape, bool)
    for kind, values in slow.escapes.items():
        assert escapes[kind] == pytest.approx(values, abs=1e-9)
        met[kind] = True
    assert (met | (escapes == first)).all()
    agreements = fast.bins.reshape(20, 4, 2, 4, 4, 16, 8, 3)
    met = np.zeros(agreements.shape, bool)
    for (half, (session, corpus, learned, other, neural), inside), values in slow.agreements.items():
        row = (half, neural, int(inside), other, learned, corpus, session)
        assert agreements[row] == pytest.approx(values, abs=1e-9)
        met[row] = True
    assert (met | (agreements == 0)).all()
    paths = np.zeros((4, 20, 3))
    for row, values in slow.paths.items():
        paths[row] = values
    assert fast.paths.reshape(paths.shape) == pytest.approx(paths, abs=1e-9)


def assert_well_formed(draft: Draft, config: DraftConfig) -> None:
    probabilities = (1.0, *draft.path_probabilities)
    depths = [0]
    siblings: defaultdict[int, list[int]] = defaultdict(list)
    for node, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True), start=1):
        assert 0 <= parent < node
        assert 0 < probabilities[node] <= probabilities[parent]
        assert token_id not in siblings[parent]
        siblings[parent].append(token_id)
        depths.append(depths[parent] + 1)
    assert max(depths) <= config.max_depth
    assert all(len(tokens) <= config.max_branches for tokens in siblings.values())
    assert draft.is_chain or draft.strategy == "tree"


@settings(max_examples=15)
@given(
    config=configs,
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 4, 12, 40]),
    max_order=st.integers(0, 7),
    boundaries=st.booleans(),
    budgets=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    least=st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=3),
    layers=st.sampled_from([1, 1, 2, 4]),
    is_neural=st.booleans(),
    mixer=st.sampled_from(["none", "shipped", "random"]),
)
def test_every_step_is_that_of_the_reference(
    config: DraftConfig,
    seed: int,
    size: int,
    max_order: int,
    boundaries: bool,
    budgets: list[int],
    least: list[float],
    layers: int,
    is_neural: bool,
    mixer: str,
) -> None:
    absent = {"corpus", "neural"} if not max_order else set() if is_neural else {"neural"}
    assume(config.strategy == "greedy" or config.sources - absent)
    assume(config.strategy != "greedy" or max_order)
    chance = random.Random(seed)
    alphabet = [*chance.sample(range(16_000), size), *SHARING_A_SLOT]
    foreign = chance.choice([[], [-1, -7, VOCABULARY_SIZE, 2**30]])
    corpus = [text_of(chance, alphabet, chance.choice([1, 30, 200])) for _ in range(chance.randint(layers, 4))]
    window = chance.choice([256, 300, 1_000])
    known = [*dict.fromkeys(token for token in joined(corpus) if token >= 0), 17_000, 17_001]
    generator = np.random.default_rng(seed)
    model_words = [
        random_words(generator, known, VOCABULARY_SIZE) if is_neural and layer != seed % layers + 1 else None
        for layer in range(layers)
    ]
    mixer_words = None if mixer == "none" else mixer_weights()
    if mixer == "random":
        mixer_words = np.random.default_rng(seed).normal(0, 0.5, NUM_MIXER_WEIGHTS).astype(np.float32)
    pair = pair_of(
        corpus if max_order else None,
        max_order,
        config,
        boundaries=boundaries,
        window=window,
        layers=layers,
        model_words=model_words,
        mixer_words=mixer_words,
    )
    texts = [text_of(chance, [*alphabet, *foreign], chance.choice([9, 70, 150]), corpus) for _ in range(5)]
    texts[2] = [*texts[1][:40], *texts[2]]
    assume(
        not any(is_crowded(text, SESSION_CHAINS) for text in texts) and not is_crowded(joined(texts), LEARNED_CHAINS)
    )
    opened = 0
    for _ in range(22):
        if opened < len(texts) and (len(pair.texts) < 2 or chance.random() < 0.1):
            text = texts[opened]
            prompt = chance.choice([0, 1, 5, len(text) // 2, len(text) - 10])
            tenant, learn = chance.choice("aab"), chance.random() < 0.8
            pair.open(opened, text, max(0, prompt), tenant, learn)
            opened += 1
        if not pair.texts:
            break
        number = chance.choice(list(pair.texts))
        draft = pair.draft(
            number, chance.choice(["tree", "tree", "adaptive"]), chance.choice(budgets), chance.choice([0.0, *least]),
            omits_neural=chance.random() < 0.3,
        )  # fmt: skip
        if chance.random() < 0.5:
            nodes = chance.sample(range(len(draft) + 1), chance.randint(0, min(4, len(draft) + 1)))
            widths = [chance.choice([0, 1, 3, 8, 10]) for _ in nodes]
            pair.recycle(number, nodes, [chance.sample(range(10), width) for width in widths])
        for _ in range(chance.choice([1, 1, 2])):
            pair.accept(number, chance.choice([0, 1, 2, 5, 9]))
        if pair.places[number] == len(pair.texts[number]):
            pair.close(number)


def successors_of(first: int, number: int) -> list[int]:
    """Return a text in which one token has ``number`` different successors with different counts."""
    return [token for other in range(number) for _ in range(1 + other % 3) for token in (first, 100 + other)]


@pytest.mark.slow
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), max_session_tokens=st.sampled_from([256, 300, 1_000]))
def test_more_than_is_looked_at(seed: int, max_session_tokens: int) -> None:
    """Sequences and texts exceed their windows, and positions and successors exceed their limits."""
    chance = random.Random(seed)
    config = DraftConfig(
        strategy="tree",
        max_depth=chance.randint(1, 6),
        max_learned_tokens=chance.choice([200, 100_000]),
    )
    alphabet = chance.choice([list(SHARING_A_SLOT), [7, 8, 9]])
    corpus = [text_of(chance, alphabet, 400), successors_of(alphabet[0], LONG_ROW + 20)]
    pair = pair_of(corpus, chance.randint(1, 3), config, window=max_session_tokens)
    texts = [text_of(chance, alphabet, length, [[*range(200, 280)]]) for length in (330, 620, 400)]
    for number, text in enumerate(texts):
        assume(not is_crowded(text, SESSION_CHAINS) and not is_crowded(joined(texts[:number]), LEARNED_CHAINS))
        pair.open(number, text, 200, "", True)
        while pair.places[number] < len(text):
            pair.draft(number, "tree", chance.choice([1, 5, 12]))
            pair.accept(number, chance.choice([2, 40, 60]))
        pair.close(number)


def test_more_candidates_than_are_kept() -> None:
    config = DraftConfig(strategy="tree", max_branches=64, max_depth=2)
    tokens, others = range(3_500, 3_700), range(2_000, 2_100)
    corpus = [[1, 2, token] for token in others for _ in range(1 + token % 4)]
    pair = pair_of(corpus, 2, config, window=131_072)
    learned = [token for other in tokens[100:170] for token in (1, 2, other)]
    session = [token for number in range(80) for token in (1, 2, tokens[number], 1, 3, tokens[number + 100])]
    assert not is_crowded(learned, LEARNED_CHAINS)
    assert not is_crowded(session, SESSION_CHAINS)
    pair.open(0, [1, *learned], 1, "", True)
    pair.accept(0, len(learned))
    pair.close(0)
    pair.open(1, [*session, 1, 2, 7], len(session), "", False)
    pair.accept(1, 1)
    pair.recycle(1, [0], [[*range(40, 50)]])
    pair.accept(1, 1)
    assert len(pair.draft(1, "tree", 100)) > MAX_MATCHES
    pair.accept(1, 1)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    branches=st.integers(1, 8),
    depth=st.integers(1, 6),
    budget=st.integers(1, 40),
    smaller=st.integers(0, 40),
)
def test_trees_of_all_kinds_agree(seed: int, branches: int, depth: int, budget: int, smaller: int) -> None:
    chance = random.Random(seed)
    alphabet = chance.sample(range(VOCABULARY_SIZE), chance.choice([3, 12]))
    corpus = text_of(chance, alphabet, 200)
    config = DraftConfig(strategy="tree", max_branches=branches, max_depth=depth)
    drafter = SessionDrafter(graph_of([corpus], 4, VOCABULARY_SIZE), config)
    narrow = SessionDrafter(drafter.graphs, config.model_copy(update={"max_branches": 1}))
    text = text_of(chance, alphabet, 120, [corpus])
    for each in (drafter, narrow):
        each.open(1)
        each.accept(1, text[:60])
        each.accept(1, text[60:])
    orders = [(budget, "tree"), (min(budget, smaller), "tree"), (budget, "adaptive")]
    tree, small, chain = drafter.draft(
        [SequenceStep(1, (), size, options=DraftOptions(strategy)) for size, strategy in orders]
    )
    (single,) = narrow.draft([SequenceStep(1, (), budget, options=DraftOptions("tree"))])
    assert chain.is_chain
    assert facts(single) == facts(chain)
    assert facts(small) == tuple(fact[: len(small)] for fact in facts(tree))
    (whatever,) = drafter.draft([SequenceStep(1, (), budget, options=DraftOptions("specexec"), least_probability=1.0)])
    assert facts(whatever) == facts(tree), "it uses its whole budget"


def facts(draft: Draft) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    return draft.token_ids, draft.parents, draft.path_probabilities
