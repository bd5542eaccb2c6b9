"""NASD as its document describes it: examples of its storages, and a function whose output equals the target's."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chisquare
from transformers import LlamaConfig, LlamaForCausalLM

from speculant_graph import (
    GreedyProcessor,
    INgramStorage,
    MultinomialProcessor,
    NGramStorage,
    OneLevelNGramStorage,
    ngram_assisted_speculative_generate,
)
from speculant_graph.errors import ConfigError, DraftRequestError, GenerationRequestError
from support.tiny_models import tiny_gpt_oss, tiny_model

WORDS = ["The", "capital", "of", "France", "is", "Paris", "Berlin", "London", "city", "Germany"]
VOCABULARY = 258
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
SHORT = [11, 12, 13]
"""After this prompt, the tests' model writes two different tokens."""


def ids(text: str) -> torch.Tensor:
    return torch.tensor([[WORDS.index(word) for word in text.split()]])


def words(table):
    """Return a storage's table with words for token ids."""
    if isinstance(table, dict):
        return {words(key): words(value) for key, value in table.items()}
    return tuple(WORDS[token] for token in table) if isinstance(table, tuple) else WORDS[table]


def test_3_3_the_top_token_changes_when_another_has_more():
    storage = OneLevelNGramStorage(n=3, vocab_size=10)
    context = ids("France is")
    for token, top in (("Berlin", "Berlin"), ("Paris", "Berlin"), ("Paris", "Paris"), ("Berlin", "Paris")):
        storage.update(context, ids(token))
        assert WORDS[storage.next_token(context)[0]] == top
    storage.update(context, ids("London Berlin"))
    assert words(storage.ngrams) == {("France", "is"): "Berlin"}
    assert storage.counts == {(3, 4): {6: 3, 5: 2, 7: 1}}


class Recorder(INgramStorage):
    """A caller's own storage: always drafts one token, and records its calls."""

    def __init__(self, token: int, *, is_known: bool = True) -> None:
        super().__init__(2, VOCABULARY)
        self.token, self.is_known = token, is_known
        self.told: list[tuple[str, list[int], list[int]]] = []

    def next_token(self, input_ids):
        self.told.append(("next_token", input_ids[0].tolist(), []))
        return torch.tensor([self.token]), torch.tensor([self.is_known])  # shape [batch]: one axis fewer than ours

    def update(self, input_ids, next_tokens):
        self.told.append(("update", input_ids[0].tolist(), next_tokens[0].tolist()))

    def initialize(self, input_ids):
        self.told.append(("initialize", input_ids[0].tolist(), []))


@pytest.fixture(scope="module")
def llama():
    target = tiny_model("llama")
    target.model.set_attn_implementation("eager")
    return target.model


def plain(model, prompt, num_tokens, **settings):
    rows = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=num_tokens, pad_token_id=0, **settings
    )
    return rows[0, len(prompt) :].tolist()


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("family", ["gpt_oss", "llama", "mistral", "qwen2", "qwen3_moe"])
def test_5_greedy_tokens_are_those_of_the_target(family, use_cache):
    target = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    target.model.set_attn_implementation("eager")
    storage, accepted = NGramStorage(n=3, vocab_size=VOCABULARY), 0.0
    for prompt, settings in (
        (PROMPT, {}),
        (PROMPT, {"first_target": False, "filler_top_k": 1}),  # the storage has learned from the first run
        (list(range(1, 41)), {"stop_if_unknown": True, "gamma": 9}),
        ([9], {"filler_top_k": 1_000, "gamma": 2}),
    ):
        expected = plain(target.model, prompt, 20, eos_token_id=257)
        written, rate = ngram_assisted_speculative_generate(
            prompt, storage, target.model, max_gen_len=20, eos_tokens_id=257, use_cache=use_cache, **settings
        )
        assert written == expected
        accepted += rate
    assert accepted > 0.1, "or nothing was tested"


def test_5_what_a_storage_is_asked_and_told(llama):
    first, second, third, fourth = plain(llama, SHORT, 4, eos_token_id=[])
    storage = Recorder(second)
    written, rate = ngram_assisted_speculative_generate(
        SHORT, storage, llama, gamma=1, filler_top_k=2, max_gen_len=4, eos_tokens_id=[]
    )
    assert written == [first, second, third, fourth]
    assert rate == 1.0
    top = [llama(torch.tensor([[*SHORT, *written[:n]]])).logits[0, -1].topk(2).indices.tolist() for n in range(4)]
    assert storage.told[:8] == [
        ("initialize", SHORT, []),
        ("update", SHORT, [first]),  # without the other top tokens
        ("next_token", [*SHORT, first], []),
        ("update", [*SHORT, first], [second]),
        ("update", [*SHORT, first], top[1]),
        ("update", [*SHORT, first, second], [third]),
        ("update", [*SHORT, first, second], top[2]),
        ("update", [*SHORT, first, second, third], [fourth]),  # one token is left, so there is no draft
    ]
    assert len(storage.told) == 9


def test_5_acceptance_is_a_share_of_what_was_drafted(llama):
    first, second = plain(llama, SHORT, 2, eos_token_id=[])
    assert first != second
    for token, rate in ((second, 1.0), ((second + 1) % VOCABULARY, 0.0)):
        written = ngram_assisted_speculative_generate(
            SHORT, Recorder(token), llama, max_gen_len=3, eos_tokens_id=second
        )
        assert written == ([first, second], rate)
    for useless in (Recorder(VOCABULARY), Recorder(-1), Recorder(second, is_known=False)):
        assert ngram_assisted_speculative_generate(
            SHORT, useless, llama, max_gen_len=3, eos_tokens_id=second, stop_if_unknown=True
        ) == ([first, second], 0.0)
    unknown = Recorder(second, is_known=False)
    assert ngram_assisted_speculative_generate(SHORT, unknown, llama, max_gen_len=3, eos_tokens_id=second)[1] == 1.0


def test_5_where_it_ends(llama):
    storage = NGramStorage(n=3, vocab_size=VOCABULARY)
    assert ngram_assisted_speculative_generate(PROMPT, storage, llama, max_gen_len=0) == ([], 0.0)
    written, _ = ngram_assisted_speculative_generate([3] * 505, storage, llama, eos_tokens_id=[])
    assert written == plain(llama, [3] * 505, 7, eos_token_id=[]), "the model has 512 positions"
    for prompt in ([], [3] * 512, [258]):
        with pytest.raises(GenerationRequestError) as caught:
            ngram_assisted_speculative_generate(prompt, storage, llama)
        assert caught.value.field == "prompt"


@pytest.mark.parametrize("use_cache", [False, True])
def test_5_samples_are_those_of_the_target_with_the_same_numbers(llama, use_cache):
    processor, accepted = MultinomialProcessor(temperature=0.4), 0.0
    for seed in range(5):
        torch.manual_seed(seed)
        expected = list(PROMPT)
        for _ in range(24):
            with torch.no_grad():
                probs = processor(llama(torch.tensor([expected])).logits[:, -1])
            expected.append(int(processor.sample(probs)))
        torch.manual_seed(seed)
        written, rate = ngram_assisted_speculative_generate(
            PROMPT, NGramStorage(n=3, vocab_size=VOCABULARY), llama, logits_processor=processor, max_gen_len=24,
            eos_tokens_id=[], use_cache=use_cache,
        )  # fmt: skip
        assert written == expected[len(PROMPT) :]
        accepted += rate
    assert accepted > 0.1, "or nothing was tested"


class DrawingAgain(MultinomialProcessor):
    """Draws again if its token differs from the drafted one, which biases the output."""

    def sample(self, probs):
        token = super().sample(probs)
        return token if int(token) == 3 else super().sample(probs)


@pytest.mark.parametrize(("kind", "is_right"), [(MultinomialProcessor, True), (DrawingAgain, False)])
def test_5_samples_have_the_distribution_of_the_target(kind, is_right):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=5, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    ).eval()
    prompt, outcomes = [1, 2], list(itertools.product(range(5), repeat=2))
    with torch.no_grad():
        probabilities = [
            torch.softmax(model(torch.tensor([[*prompt, first]])).logits[0, -2:], dim=-1).double() for first in range(5)
        ]
    expected = [probabilities[first][0, first] * probabilities[first][1, second] for first, second in outcomes]
    counts, num_samples = dict.fromkeys(outcomes, 0), 300
    for _ in range(num_samples):
        written, _ = ngram_assisted_speculative_generate(
            prompt, Recorder(3), model, max_gen_len=2, logits_processor=kind(), eos_tokens_id=[], first_target=False
        )
        counts[tuple(written)] += 1
    frequencies = torch.stack(expected) * num_samples / torch.stack(expected).sum()
    p_value = chisquare(list(counts.values()), frequencies.tolist()).pvalue
    assert p_value > 1e-4 if is_right else p_value < 1e-6


@pytest.mark.parametrize("kind", [NGramStorage, OneLevelNGramStorage])
@pytest.mark.parametrize(
    "sizes", [("3", 10), (1, 10), (True, 10), (2.0, 10), (None, 10), (3, 0), (3, -1), (3, "x"), (3, True), (3, 10, 0)]
)
def test_sizes_that_no_storage_can_have(kind, sizes):
    with pytest.raises(ConfigError) as caught:
        kind(*sizes)
    assert caught.value.field in ("n", "vocab_size", "max_contexts")


@pytest.mark.parametrize("kind", [NGramStorage, OneLevelNGramStorage])
@pytest.mark.parametrize(
    "tokens",
    [[[1, 2]], None, (1, 2), torch.tensor([1, 2]), torch.tensor([[1.0]]), torch.tensor([[True]]), torch.tensor([[10]]),
     torch.tensor([[-1]])],
)  # fmt: skip
def test_what_is_no_tensor_of_tokens(kind, tokens):
    storage, right = kind(3, 10), torch.tensor([[1, 2]])
    storage.initialize(right)
    for ask in (
        lambda: storage.initialize(tokens),
        lambda: storage.next_token(tokens),
        lambda: storage.update(tokens, right),
        lambda: storage.update(right, tokens),
    ):
        with pytest.raises(DraftRequestError) as caught:
            ask()
        assert caught.value.field in ("input_ids", "next_tokens")
        assert len(str(caught.value).splitlines()) == 1
    assert (3, 1) not in storage.counts, "nothing was learned"


def test_tables_are_views_that_go_on_changing():
    storage, one_level = NGramStorage(3, 10), OneLevelNGramStorage(3, 10)
    counts, ngrams, pairs, tops = storage.counts, storage.ngrams, one_level.counts, one_level.ngrams
    for each in (storage, one_level):
        each.update(torch.tensor([[1, 2]]), torch.tensor([[5]]))
    assert counts == {2: {(2,): {5: 1}}, 3: {(1, 2): {5: 1}}}
    assert ngrams == {2: {(2,): 5}, 3: {(1, 2): 5}}
    assert (pairs, tops) == ({(1, 2): {5: 1}}, {(1, 2): 5})


class OfTheDocument(NGramStorage):
    """A caller's own storage, which writes into the tables like the document's storage."""

    def update(self, input_ids, next_tokens):
        for row, tokens in zip(input_ids.tolist(), next_tokens.tolist(), strict=True):
            gram = tuple(row[-2:])
            self.counts[3].setdefault(gram, {}).update(dict.fromkeys(tokens, 1))
            self.ngrams[3].setdefault(gram, tokens[0])


def test_what_a_subclass_writes_into_the_tables_is_kept():
    storage = OfTheDocument(3, 10)
    storage.update(torch.tensor([[1, 2]]), torch.tensor([[5, 6]]))
    tokens, known = storage.next_token(torch.tensor([[1, 2]]))
    assert (int(tokens), bool(known)) == (5, True)
    NGramStorage.update(storage, torch.tensor([[1, 2]]), torch.tensor([[6]]))
    assert storage.counts[3] == {(1, 2): {5: 1, 6: 2}}
    assert int(storage.next_token(torch.tensor([[1, 2]]))[0]) == 6


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf"), "1", True, None])
def test_temperatures_that_no_processor_can_have(temperature):
    for kind in (GreedyProcessor, MultinomialProcessor):
        with pytest.raises(ConfigError) as caught:
            kind(temperature)
        assert caught.value.field == "temperature"
        assert ("GreedyProcessor" in str(caught.value)) == (kind is MultinomialProcessor), "no advice to do the same"


def test_storages_and_prompts_that_do_not_suit_the_model(llama):
    with pytest.raises(ConfigError):
        ngram_assisted_speculative_generate(SHORT, NGramStorage(3, 10), llama)
    for prompt in (None, ["a"], 3):
        with pytest.raises(GenerationRequestError) as caught:
            ngram_assisted_speculative_generate(prompt, NGramStorage(3, VOCABULARY), llama)
        assert caught.value.field == "inputs"
