"""tiktoken's ids are those of the tokenizers library, or it is not used."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

import speculant_verifier
from speculant_graph.config import GraphConfig
from speculant_graph.corpus.fast_bpe import PROBES
from speculant_graph.corpus.stream import write_token_stream
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import GraphError
from support import bpe
from support.bpe import PATTERN, byte_level, split_by

DEMO = Path(speculant_verifier.__file__).parent / "demo" / "model"
TEXT = Path(__file__).read_text("utf-8") + "".join(PROBES[1:8])
trained = partial(bpe.trained, text=TEXT, vocabulary_size=600)

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
TRICKY_TEXT = st.text(alphabet="aAbsStT  ''\n\r\t/.1é\u0301\u017f中👍\u200d\0", max_size=80)
REPEATED = st.builds("".join, st.lists(st.builds(str.__mul__, TRICKY_TEXT.map(lambda x: x[:2]), st.integers(1, 400))))


MAKERS: dict[str, Callable[[], CorpusTokenizer]] = {
    "byte level": lambda: CorpusTokenizer("x", trained(byte_level())),
    "pattern": lambda: CorpusTokenizer("x", trained(split_by(PATTERN))),
    "whole words": lambda: CorpusTokenizer("x", trained(split_by(PATTERN), ignore_merges=True)),
    "demo": lambda: CorpusTokenizer.load(DEMO),
    "gpt-oss": lambda: CorpusTokenizer.load(Path(os.environ["SPECULANT_DATA"]) / "gpt-oss-tokenizer"),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name == "gpt-oss" else name for name in MAKERS],
)
def pair(request: pytest.FixtureRequest) -> tuple[CorpusTokenizer, CorpusTokenizer]:
    """A tokenizer that uses tiktoken, and the same one that does not."""
    if request.param == "gpt-oss" and "SPECULANT_DATA" not in os.environ:
        pytest.skip("SPECULANT_DATA is not set")
    fast, slow = (MAKERS[request.param]() for _ in range(2))
    fast.speed_up()
    assert (fast.encoder, slow.encoder) == ("tiktoken", "tokenizers")
    return fast, slow


@settings(max_examples=150)
@given(text=st.one_of(ANY_TEXT, TRICKY_TEXT, REPEATED))
def test_ids_of_any_text_are_the_same(pair: tuple[CorpusTokenizer, CorpusTokenizer], text: str) -> None:
    fast, slow = pair
    ids = fast.encode_array(text)
    assert ids.dtype == np.uint32
    assert ids.tolist() == slow.encode(text) == slow.encode_array(text).tolist()


@pytest.mark.slow
def test_every_code_point_is_split_alike(pair: tuple[CorpusTokenizer, CorpusTokenizer]) -> None:
    fast, slow = pair
    points = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assigned = [code for code in points if code < 0x34000 or 0xE0000 <= code < 0xE0200]
    for start in range(0, len(assigned), 20_000):
        text = "".join(f"a{c}b {c}{c}1\n" for c in map(chr, assigned[start : start + 20_000]))
        assert np.array_equal(fast.encode_array(text), slow.encode_array(text)), hex(assigned[start])


RUNS = ["a", " ", "\n", "\t ", "7", ".", "\u0301", "Ab", "'s"]


@pytest.mark.parametrize("run", RUNS, ids=ascii)
def test_long_runs_are_the_same(pair: tuple[CorpusTokenizer, CorpusTokenizer], run: str) -> None:
    fast, slow = pair
    text = "start " + run * 100_000 + "end"
    assert np.array_equal(fast.encode_array(text), slow.encode_array(text))


def test_what_tiktoken_refuses_is_encoded_all_the_same() -> None:
    tokenizer = CorpusTokenizer("x", trained(split_by(PATTERN)))
    tokenizer.speed_up()
    blanks = " " * 1_100_000
    with pytest.raises(ValueError, match="Max stack size"):
        tokenizer._fast._encoding.encode_to_numpy(blanks)  # type: ignore[union-attr]
    assert tokenizer.encode_array(blanks).tolist() == tokenizer.encode(blanks)


@pytest.mark.slow
def test_a_tokenizer_that_gives_up_is_one_line() -> None:
    tokenizer = CorpusTokenizer("x", trained(split_by(PATTERN)))
    with pytest.raises(GraphError, match=r"the tokenizer gave up .*look for millions"):
        tokenizer.encode(" " * 10_000_000)


def _edited(change: Callable[[dict[str, Any]], None]) -> Tokenizer:
    definition = json.loads(trained(split_by(PATTERN)).to_str())
    change(definition)
    return Tokenizer.from_str(json.dumps(definition))


def _with_added_token() -> Tokenizer:
    tokenizer = trained(split_by(PATTERN))
    tokenizer.add_tokens([AddedToken("the")])
    return tokenizer


def _with_lower_case() -> Tokenizer:
    tokenizer = trained(split_by(PATTERN))
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def _with_ids_out_of_order(definition: dict[str, Any]) -> None:
    vocabulary = definition["model"]["vocab"]
    first, second = ("".join(definition["model"]["merges"][number]) for number in (3, 4))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def _with_a_word_that_no_merge_makes(definition: dict[str, Any]) -> None:
    definition["model"]["ignore_merges"] = True
    definition["model"]["vocab"]["zqxj"] = 600


def _with_a_merge_that_never_comes(definition: dict[str, Any]) -> None:
    # "a b" and "b c" before it: the bytes of "abc" become "ab c", for which there is no merge.
    vocabulary = definition["model"]["vocab"]
    definition["model"]["vocab"] = {token: token_id for token, token_id in vocabulary.items() if len(token) == 1}
    size = len(definition["model"]["vocab"])
    renumbered = {token: token_id for token_id, token in enumerate(definition["model"]["vocab"])}
    definition["model"]["vocab"] = renumbered | {"ab": size, "bc": size + 1, "abc": size + 2}
    definition["model"]["merges"] = [["a", "b"], ["b", "c"], ["a", "bc"]]


UNLIKE = {
    "a normalizer": _with_lower_case,
    "an added token that is not special": _with_added_token,
    "a space in front": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "no words": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    "another split": lambda: trained(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ),
    "dropout": lambda: _edited(lambda definition: definition["model"].update(dropout=0.5)),
    "ids out of order": lambda: _edited(_with_ids_out_of_order),
    "a word that no merge makes": lambda: _edited(_with_a_word_that_no_merge_makes),
    "a merge that never comes": lambda: _edited(_with_a_merge_that_never_comes),
    "another model": lambda: Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_tokenizers_that_may_differ_keep_their_own_encoder(kind: str) -> None:
    tokenizer = CorpusTokenizer("x", UNLIKE[kind]())
    tokenizer.speed_up()
    assert tokenizer.encoder == "tokenizers"
    if kind != "dropout":
        assert tokenizer.encode_array("a B the zqxj abc").tolist() == tokenizer.encode("a B the zqxj abc")


def test_merges_of_several_ways_to_a_token_are_taken() -> None:
    def all_ways(definition: dict[str, Any]) -> None:
        vocabulary = definition["model"]["vocab"]
        definition["model"]["merges"] = [
            [token[:cut], token[cut:]]
            for token in sorted(vocabulary, key=vocabulary.__getitem__)
            for cut in range(1, len(token))
            if token[:cut] in vocabulary and token[cut:] in vocabulary
        ]

    fast, slow = (CorpusTokenizer("x", _edited(all_ways)) for _ in range(2))
    fast.speed_up([TEXT])
    assert fast.encoder == "tiktoken"
    assert fast.encode_array(TEXT).tolist() == slow.encode(TEXT)


# tokenizers keeps what a pattern leaves out, tiktoken drops it.
@pytest.mark.parametrize("pattern", [r"\p{L}+|\s+", r"\w+|\W+(?=zzz)|\d"], ids=["gaps", "more gaps"])
def test_a_difference_on_fixed_texts_is_a_warning(warnings: list[str], pattern: str) -> None:
    tokenizer = CorpusTokenizer("mine", trained(split_by(pattern)))
    tokenizer.speed_up()
    assert tokenizer.encoder == "tokenizers"
    assert ["tiktoken splits text unlike tokenizer mine" in message for message in warnings] == [True]


RARE = "qqzzqq"
"""A word that no fixed text has; the pattern below leaves it out."""


def _blind_to_a_rare_word() -> CorpusTokenizer:
    tokenizer = CorpusTokenizer("mine", trained(split_by(rf"(?!{RARE})[\s\S]")))
    tokenizer.speed_up()
    assert tokenizer.encoder == "tiktoken"
    assert tokenizer.encode_array(RARE).tolist() != tokenizer.encode(RARE)  # so the sample has something to find
    return tokenizer


WORDS = "plain words\n" * 30_000
TEXTS = {
    "first file": [f"{RARE} {WORDS}", WORDS],
    "end of the last file": [WORDS, WORDS + f"{RARE} words\n" * 3_000],
    "packed": [f"{RARE} {WORDS}", WORDS],
    "pipe": [f"{RARE} words"],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_difference_in_the_corpus_itself_is_found_before_it_is_written(
    tmp_path: Path, warnings: list[str], kind: str
) -> None:
    tokenizer, slow = _blind_to_a_rare_word(), _blind_to_a_rare_word()
    paths = [tmp_path / f"{index}.txt" for index in range(len(TEXTS[kind]))]
    if kind == "pipe":
        os.mkfifo(paths[0])
        threading.Thread(target=paths[0].write_text, args=(*TEXTS[kind], "utf-8")).start()
    else:
        for path, text in zip(paths, TEXTS[kind], strict=True):
            path.write_text(text, "utf-8")
    if kind == "packed":
        paths[0] = tmp_path / "packed.txt.gz"
        paths[0].write_bytes(gzip.compress(TEXTS[kind][0].encode()))
    stream = write_token_stream(tokenizer, paths, tmp_path / "out", GraphConfig())
    assert tokenizer.encoder == "tokenizers"
    assert np.fromfile(stream.path, np.uint32).tolist() == [i for text in TEXTS[kind] for i in slow.encode(text)]
    assert len(warnings) == 1
