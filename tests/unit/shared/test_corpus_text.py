"""Positions at which long texts are cut for the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.corpus import tokenize as text_module
from speculant_graph.corpus.tokenize import CorpusTokenizer, cut_text


def _pieces(text: str, chunk_size: int, block: int = 1 << 20) -> list[str]:
    blocks: Iterator[str] = (text[start : start + block] for start in range(0, len(text), block))
    return list(cut_text(blocks, chunk_size))


def test_cuts_are_only_where_words_begin() -> None:
    text = "one\ntwo \nthree\n\nfour\n5\n/six\nseven  eight nine, ten\n"
    assert _pieces(text, 1) == ["one\n", "two \nthree\n\nfour\n5\n/six\n", "seven  eight", " nine, ten\n"]
    assert _pieces(text, 1000) == [text]


@settings(max_examples=200)
@given(
    text=st.text(alphabet="ab  the'd/.é\n\n\n1{\u0301𝄞", max_size=120),
    chunk_size=st.integers(1, 20),
    block=st.integers(1, 9),
    patience=st.sampled_from([3, 20, 1000]),
)
def test_pieces_are_the_text_and_their_ids_its_ids(
    tokenizer_folder: Path, text: str, chunk_size: int, block: int, patience: int
) -> None:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_PATIENCE", patience)
        pieces = _pieces(text, chunk_size, block)
    assert "".join(pieces) == text
    assert all(len(piece) >= chunk_size for piece in pieces[:-1])
    assert all(pieces)
    assert [token_id for ids in tokenizer.encode_batch(pieces) for token_id in ids] == tokenizer.encode(text)
