"""Which files make a corpus, and where their text is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.corpus import loaders
from speculant_graph.corpus.loaders import list_corpus_files, read_chunks
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError


def test_files_in_order_folders_sorted_and_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    names = ["b.txt", "a.md", "deep/c.py", "deep/d.rst", "picture.png"]
    for name in [*names, "../last.log"]:
        (folder / name).write_text("text", "utf-8")
    last = tmp_path / "last.log"
    expected = [last, folder / "a.md", folder / "b.txt", folder / "deep/c.py", folder / "deep/d.rst"]
    assert list_corpus_files([last, str(folder), folder / "a.md"]) == expected
    assert list_corpus_files(str(last)) == [last]


def test_missing_empty_and_no_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist; name"):
        list_corpus_files([tmp_path / "nothing.txt"])
    with pytest.raises(CorpusError, match="holds no text; name files"):
        list_corpus_files([tmp_path])
    with pytest.raises(CorpusError, match="no corpus"):
        list_corpus_files([])


def test_cuts_are_only_where_words_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    text = "one\ntwo \nthree\n\nfour\n5\n/six\nseven  eight nine, ten\n"
    path.write_text(text, "utf-8")
    assert list(read_chunks(path, 1)) == [
        "one\n",
        "two \nthree\n\nfour\n5\n/six\n",
        "seven  eight",
        " nine, ten\n",
    ]
    assert list(read_chunks(path, 1000)) == [text]


def test_an_empty_file_has_no_chunks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert list(read_chunks(tmp_path / "a.txt", 10)) == []


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab é/.\n\r𝄞1", max_size=80), chunk_size=st.integers(1, 20), block=st.integers(1, 9))
def test_chunks_are_the_text_however_the_file_is_read(
    tmp_path_factory: pytest.TempPathFactory, text: str, chunk_size: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "a.txt"
    for encoding in ("utf-8", "utf-16"):
        path.write_bytes(text.encode(encoding))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loaders, "_BLOCK_BYTES", block)
            chunks = list(read_chunks(path, chunk_size, encoding))
        assert "".join(chunks) == text.replace("\r\n", "\n").replace("\r", "\n")
        assert all(len(chunk) >= chunk_size for chunk in chunks[:-1])
        assert all(chunks)


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="ab  the'd/.é\n\n\n1", max_size=120), chunk_size=st.integers(1, 20))
def test_token_ids_of_chunks_are_those_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path, text: str, chunk_size: int
) -> None:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    path = tmp_path_factory.mktemp("chunks") / "a.txt"
    path.write_text(text, "utf-8")
    pieces = tokenizer.encode_batch(list(read_chunks(path, chunk_size)))
    assert [token_id for piece in pieces for token_id in piece] == tokenizer.encode(text)


def test_a_wrong_encoding_is_named_with_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "_BLOCK_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_bytes("aéb".encode() + b"cd\xff" + b"e")
    with pytest.raises(CorpusError, match=r"a\.txt: byte 6 is not utf-8 .*--graph\.encoding"):
        list(read_chunks(path, 4))
    path.write_bytes(b"abcd\xe2\x82")
    with pytest.raises(CorpusError, match=r"byte 4 is not utf-8 \(unexpected end of data\)"):
        list(read_chunks(path, 4))
    with pytest.raises(ConfigError, match="no text encoding"):
        list(read_chunks(path, 4, "rot13"))


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="can't be read"):
        list(read_chunks(tmp_path / "gone.txt", 4))
