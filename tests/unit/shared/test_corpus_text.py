"""How bytes become text, and where it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.corpus import text as text_module
from speculant_graph.corpus.text import cut_text, read_text
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import CorpusError


def _blocks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def _pieces(data: bytes, chunk_size: int, block: int = 1 << 20) -> list[str]:
    return list(cut_text(read_text(_blocks(data, block), "a.txt"), chunk_size))


def test_cuts_are_only_where_words_begin() -> None:
    text = "one\ntwo \nthree\n\nfour\n5\n/six\nseven  eight nine, ten\n"
    assert _pieces(text.encode(), 1) == [
        "one\n",
        "two \nthree\n\nfour\n5\n/six\n",
        "seven  eight",
        " nine, ten\n",
    ]
    assert _pieces(text.encode(), 1000) == [text]


@pytest.mark.parametrize("block", [1, 3, 11])
def test_no_place_is_missed_between_blocks(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    words = b"a b c d\ne f g h i jj k l m n ooo p q r"
    assert _pieces(words, 2, block=block) == _pieces(words, 2)
    monkeypatch.setattr(text_module, "_PATIENCE", 8)
    pieces = _pieces(b"7" * 500 + b" 1" * 500, 4, block=block)
    assert len(pieces[0]) == 500
    assert max(map(len, pieces[1:])) <= 8 + block


@settings(max_examples=100)
@given(text=st.text(alphabet="ab é/.\n\r𝄞1", max_size=80), chunk_size=st.integers(1, 20), block=st.integers(1, 9))
def test_pieces_are_the_text_however_the_file_is_read(text: str, chunk_size: int, block: int) -> None:
    for patience in (4, 1000):
        for encoding in ("utf-8", "utf-8-sig"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(text_module, "_PATIENCE", patience)
                pieces = _pieces(text.encode(encoding), chunk_size, block)
            assert "".join(pieces) == text.replace("\r\n", "\n").replace("\r", "\n")
            assert all(len(piece) >= chunk_size for piece in pieces[:-1])
            assert all(pieces)


@settings(max_examples=200)
@given(
    text=st.text(alphabet="ab  the'd/.é\n\n\n1{\u0301", max_size=120),
    chunk_size=st.integers(1, 20),
    patience=st.sampled_from([3, 20, 1000]),
)
def test_token_ids_of_pieces_are_those_of_the_text(
    tokenizer_folder: Path, text: str, chunk_size: int, patience: int
) -> None:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_PATIENCE", patience)
        pieces = tokenizer.encode_batch(_pieces(text.encode(), chunk_size))
    assert [token_id for piece in pieces for token_id in piece] == tokenizer.encode(text)


def test_a_byte_order_mark_is_left_out_once() -> None:
    assert _pieces("\ufeff\ufeffa".encode(), 4, block=2) == ["\ufeffa"]
    assert _pieces("a\ufeff".encode(), 4) == ["a\ufeff"]


def test_a_wrong_encoding_is_named_with_the_byte() -> None:
    with pytest.raises(CorpusError, match=r"a\.txt: byte 6 is not UTF-8 .*convert the file first"):
        _pieces("aéb".encode() + b"cd\xff" + b"e", 4, block=3)
    with pytest.raises(CorpusError, match=r"byte 4 is not UTF-8 \(unexpected end of data\)"):
        _pieces(b"abcd\xe2\x82", 4, block=3)


def test_binary_files_are_refused() -> None:
    for data in (b"\x7fELF\x02\0\0", "a b".encode("utf-16")):
        with pytest.raises(CorpusError, match=r"a\.txt: looks binary; leave it out, or convert it to UTF-8"):
            _pieces(data, 4)
