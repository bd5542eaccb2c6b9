"""Special tokens that a corpus spells out: the ids of its pieces are those of the whole text."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from speculant_graph.config import GraphConfig
from speculant_graph.corpus import stream as stream_module
from speculant_graph.corpus import text as text_module
from speculant_graph.corpus.stream import write_token_stream
from speculant_graph.corpus.text import may_be_cut
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.types import SpecialTokensName
from support import bpe
from support.bpe import PATTERN, byte_level, split_by

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
TEXT = "The parties agree to the terms.\n\n\tfinal analysis of the 12 parties; it's a start<|end>\n" * 4
trained = partial(bpe.trained, text=TEXT, vocabulary_size=360, special=HARMONY)


def released() -> Tokenizer:
    if "SPECULANT_DATA" not in os.environ:
        pytest.skip("SPECULANT_DATA is not set")
    return Tokenizer.from_file(str(Path(os.environ["SPECULANT_DATA"]) / "gpt-oss-tokenizer" / "tokenizer.json"))


def with_rules(**rules: bool) -> Tokenizer:
    return trained(byte_level(), special=[AddedToken("<|end|>", special=True, **rules), "<|start|>"])


def with_a_plain_token() -> Tokenizer:
    tokenizer = trained(byte_level())
    tokenizer.add_tokens([AddedToken("the parties")])
    return tokenizer


TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], str, bool]] = {
    "byte level": (lambda: trained(byte_level()), "tiktoken", True),
    "pattern": (lambda: trained(split_by(PATTERN)), "tiktoken", True),
    "gpt-oss": (released, "tiktoken", True),
    "one begins with another": (
        lambda: trained(byte_level(), special=["<|end|>", "<|end|>s", "<|start|>"]),
        "tokenizers",
        True,
    ),
    "blanks inside": (lambda: trained(byte_level(), special=["<|end of\nturn|>", "<|start|>"]), "tiktoken", False),
    "takes blanks before it": (lambda: with_rules(lstrip=True), "tokenizers", False),
    "takes blanks behind it": (lambda: with_rules(rstrip=True), "tokenizers", False),
    "whole words": (lambda: with_rules(single_word=True), "tokenizers", False),
    "normalized": (lambda: with_rules(normalized=True), "tokenizers", True),
    "one that is not special": (with_a_plain_token, "tokenizers", False),
}
"""How each is made; what encodes large corpora if special tokens are parsed, and whether texts are cut then."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name == "gpt-oss" else name for name in TOKENIZERS],
)
def made(request: pytest.FixtureRequest) -> tuple[str, dict[SpecialTokensName, CorpusTokenizer], Tokenizer]:
    """Its name; the tokenizer that reads special tokens as text, and the one that parses them; the oracle."""
    make, _, _ = TOKENIZERS[request.param]
    names: tuple[SpecialTokensName, ...] = ("text", "parse")
    return request.param, {name: CorpusTokenizer("x", make(), special_tokens=name) for name in names}, make()


WORDS = ["<|sta", "rt|>", "<|", "|>", "<|end|>s", "of", "final", "agree", ".", "/", "12", "é", "A", "'s", "中"]
PARTS = st.sampled_from(
    [*HARMONY, *WORDS, "", " ", "\n", "  ", "\n\n", "\t", " agree", "the parties", "<|end of\nturn|>"]
)
FEW_PARTS = st.sampled_from(["<|end|>", "<|start|>", "<|end of\nturn|>", " agree", "agree", " ", "\n", "."])
TEXTS = st.one_of(st.lists(PARTS, max_size=30), st.lists(FEW_PARTS, max_size=8)).map("".join)


@pytest.mark.parametrize("mode", ["text", "parse"])
@settings(max_examples=60)
@given(
    text=TEXTS.filter(bool),
    is_fast=st.booleans(),
    piece=st.integers(1, 40),
    patience=st.sampled_from([3, 20, 1 << 18]),
)
def test_ids_are_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[str, dict[SpecialTokensName, CorpusTokenizer], Tokenizer],
    mode: SpecialTokensName,
    text: str,
    is_fast: bool,
    piece: int,
    patience: int,
) -> None:
    _, tokenizers, oracle = made
    folder = tmp_path_factory.mktemp("stream")
    (folder / "a.txt").write_bytes(text.encode())
    tokenizer = tokenizers[mode]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "_PIECE_CHARACTERS", piece)
        patch.setattr(stream_module, "_FAST_FROM_BYTES", 1 if is_fast else 1 << 30)
        patch.setattr(text_module, "_PATIENCE", patience)
        if not is_fast:
            patch.setattr(tokenizer, "_fast", None)
        stream = write_token_stream(tokenizer, [folder / "a.txt"], folder / "out", GraphConfig(jobs=1))
    oracle.encode_special_tokens = mode == "text"
    assert np.fromfile(stream.path, "<u4").tolist() == oracle.encode(text, add_special_tokens=False).ids


def test_what_encodes_and_what_is_cut(
    made: tuple[str, dict[SpecialTokensName, CorpusTokenizer], Tokenizer],
) -> None:
    name, tokenizers, _ = made
    _, encoder, is_cuttable = TOKENIZERS[name]
    for tokenizer in tokenizers.values():
        tokenizer.speed_up()
    assert (tokenizers["parse"].encoder, tokenizers["parse"].is_cuttable) == (encoder, is_cuttable)
    is_plain = name == "one that is not special"  # and so no text in either mode
    assert (tokenizers["text"].encoder, tokenizers["text"].is_cuttable) == (
        ("tokenizers", False) if is_plain else ("tiktoken", True)
    )


def test_a_cut_can_be_inside_of_few_tokens() -> None:
    inside = ["a b", "<|end of turn|>", "a\nb", "\nb", "b ", "a\n\nb c"]
    never = [*HARMONY, "", " ", "\n", " b", "b\n", "  ", "\n\n", "\t", "x \n", "a/b", "a\n/b"]
    assert [token for token in inside + never if may_be_cut(token)] == inside
