"""Special tokens spelled out in a corpus: encoding it in pieces gives the ids of the whole text."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from speculant_graph.config import GraphConfig
from speculant_graph.corpus import stream as stream_module
from speculant_graph.corpus import tokenize as text_module
from speculant_graph.corpus.file_patterns import ListedFile
from speculant_graph.corpus.stream import write_token_stream
from speculant_graph.corpus.tokenize import CorpusTokenizer, may_be_cut
from speculant_graph.types import SpecialTokensName

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
TEXT = "The parties agree to the terms.\n\n\tfinal analysis of the 12 parties; it's a start<|end>\n" * 4
# Similar to patterns of published tokenizers, so that pre-tokens overlap in the same ways.
PATTERN = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
LATER = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)


def trained(pre_tokenizer: Any = GPT2, special: Sequence[str | AddedToken] = HARMONY) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def released() -> Tokenizer:
    if "SPECULANT_DATA" not in os.environ:
        pytest.skip("SPECULANT_DATA is not set")
    return Tokenizer.from_file(str(Path(os.environ["SPECULANT_DATA"]) / "gpt-oss-tokenizer" / "tokenizer.json"))


def with_rules(**rules: bool) -> Tokenizer:
    return trained(special=[AddedToken("<|end|>", special=True, **rules), "<|start|>"])


def with_a_plain_token() -> Tokenizer:
    tokenizer = trained()
    tokenizer.add_tokens([AddedToken("the parties")])
    return tokenizer


TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], bool]] = {
    "byte level": (trained, True),
    "pattern": (lambda: trained(LATER), True),
    "gpt-oss": (released, True),
    "one begins with another": (lambda: trained(special=["<|end|>", "<|end|>s", "<|start|>"]), True),
    "blanks inside": (lambda: trained(special=["<|end of\nturn|>", "<|start|>"]), False),
    "takes blanks before it": (lambda: with_rules(lstrip=True), False),
    "whole words": (lambda: with_rules(single_word=True), False),
    "one that is not special": (with_a_plain_token, False),
}
"""Factory of each tokenizer, and whether it cuts texts if special tokens are parsed."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name == "gpt-oss" else name for name in TOKENIZERS],
)
def made(request: pytest.FixtureRequest) -> tuple[str, dict[SpecialTokensName, CorpusTokenizer], Tokenizer]:
    """Return a name, the tokenizers that read special tokens as text or parse them, and the oracle."""
    make, _ = TOKENIZERS[request.param]
    names: tuple[SpecialTokensName, ...] = ("text", "parse")
    return request.param, {name: CorpusTokenizer("x", make(), special_tokens=name) for name in names}, make()


WORDS = ["<|sta", "rt|>", "<|", "|>", "<|end|>s", "of", "final", "agree", ".", "/", "12", "é", "A", "'s", "中"]
PARTS = st.sampled_from(
    [*HARMONY, *WORDS, "", " ", "\n", "  ", "\n\n", "\t", " agree", "the parties", "<|end of\nturn|>"]
)
FEW_PARTS = st.sampled_from(["<|end|>", "<|start|>", "<|end of\nturn|>", " agree", "agree", " ", "\n", "."])
TEXTS = st.one_of(st.lists(PARTS, max_size=30), st.lists(FEW_PARTS, max_size=8)).map("".join)


@pytest.mark.parametrize("mode", ["text", "parse"])
@settings(max_examples=30)
@given(text=TEXTS.filter(str.strip), piece=st.integers(1, 40), patience=st.sampled_from([3, 20, 1 << 18]))
def test_ids_are_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[str, dict[SpecialTokensName, CorpusTokenizer], Tokenizer],
    mode: SpecialTokensName,
    text: str,
    piece: int,
    patience: int,
) -> None:
    _, tokenizers, oracle = made
    folder = tmp_path_factory.mktemp("stream")
    (folder / "a.txt").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "_PIECE_CHARACTERS", piece)
        patch.setattr(text_module, "_PATIENCE", patience)
        stream = write_token_stream(tokenizers[mode], [ListedFile(folder / "a.txt")], folder / "out", GraphConfig())
    oracle.encode_special_tokens = mode == "text"
    assert np.fromfile(stream.path, "<u4").tolist() == oracle.encode(text, add_special_tokens=False).ids


def test_which_texts_are_cut(made: tuple[str, dict[SpecialTokensName, CorpusTokenizer], Tokenizer]) -> None:
    name, tokenizers, _ = made
    assert tokenizers["parse"].is_cuttable == TOKENIZERS[name][1]
    assert tokenizers["text"].is_cuttable == (name != "one that is not special")  # that one is cut in neither mode


def test_a_cut_can_be_inside_of_few_tokens() -> None:
    inside = ["a b", "<|end of turn|>", "a\nb", "\nb", "b ", "a\n\nb c"]
    never = [*HARMONY, "", " ", "\n", " b", "b\n", "  ", "\n\n", "\t", "x \n", "a/b", "a\n/b"]
    assert [token for token in inside + never if may_be_cut(token)] == inside
