"""The stream of token ids: its content, its order, and the effect of unusual files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from speculant_graph.config import GraphConfig
from speculant_graph.corpus import stream as stream_module
from speculant_graph.corpus.file_patterns import STANDARD_INPUT, ListedFile
from speculant_graph.corpus.source import CorpusFile
from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR, TokenStream, write_token_stream
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import CorpusError

DOCUMENTS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\ufeff"), max_size=60)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> CorpusTokenizer:
    return CorpusTokenizer.load(tokenizer_folder)


def expected_ids(tokenizer: CorpusTokenizer, documents: Sequence[str], *, boundaries: bool = False) -> list[int]:
    """Encode whole documents, one after another, with the tokenizers library."""
    ids: list[int] = []
    for document in filter(None, documents):
        if boundaries and ids:
            ids.append(DOCUMENT_SEPARATOR)
        bos = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        eos = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        ids += [*bos, *tokenizer.encode(document), *eos]
    return ids


def ids_of(stream: TokenStream) -> list[int]:
    return np.fromfile(stream.path, dtype="<u4").tolist()


def write(folder: Path, texts: dict[str, bytes | str]) -> list[ListedFile]:
    paths = []
    for name, text in texts.items():
        paths.append(folder / name)
        paths[-1].write_bytes(text if isinstance(text, bytes) else text.encode())
    return [ListedFile(path) for path in paths]


@settings(max_examples=60)
@given(
    files=st.lists(st.one_of(DOCUMENTS, st.lists(DOCUMENTS, max_size=4)), min_size=1, max_size=5),
    piece=st.integers(1, 70),
    chunk_size=st.integers(1024, 3000),
    boundaries=st.booleans(),
)
def test_a_stream_is_its_documents_one_after_another(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: CorpusTokenizer,
    files: list[str | list[str]],
    piece: int,
    chunk_size: int,
    boundaries: bool,
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    documents = [
        document
        for file in files
        for document in ([file.strip() and file] if isinstance(file, str) else file)  # the file has only white space
    ]
    texts = {
        f"{number}.txt" if isinstance(file, str) else f"{number}.jsonl": file
        if isinstance(file, str)
        else "\n".join(json.dumps({"text": document}) for document in file)
        for number, file in enumerate(files)
    }
    paths = write(folder, texts)
    config = GraphConfig(chunk_size=chunk_size, document_boundaries=boundaries)
    reports: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "_PIECE_CHARACTERS", piece)
        if not any(documents):
            with pytest.raises(CorpusError):
                write_token_stream(tokenizer, paths, folder / "out", config)
            return
        stream = write_token_stream(tokenizer, paths, folder / "out", config, lambda *report: reports.append(report))
    expected = expected_ids(tokenizer, documents, boundaries=boundaries)
    assert ids_of(stream) == expected
    assert stream.num_tokens == len(expected) - expected.count(DOCUMENT_SEPARATOR)
    assert stream.num_documents == sum(map(bool, documents))
    assert stream.files == tuple(
        CorpusFile(
            str(path),
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
            text_field="text" if path.suffix == ".jsonl" else "",
        )
        for path, *_ in paths
    )
    assert reports == sorted(reports)
    assert reports[-1] == (sum(path.stat().st_size for path, *_ in paths), stream.num_tokens)


@pytest.mark.parametrize("boundaries", [False, True])
def test_token_ids_are_taken_as_they_are_beside_texts(
    tmp_path: Path, tokenizer: CorpusTokenizer, boundaries: bool
) -> None:
    records = [list(range(length % 300)) for length in range(0, 3000, 7)]
    lines = "\n".join(json.dumps({"answer": {"ids": record}, "text": "unread"}) for record in records)
    paths = write(tmp_path, {"a.txt": "one two", "b.jsonl": lines, "c.txt": "three"})
    config = GraphConfig(text_field="answer.ids", document_boundaries=boundaries, chunk_size=1024)
    stream = write_token_stream(tokenizer, paths, tmp_path / "out", config)
    texts = [expected_ids(tokenizer, [text]) for text in ("one two", "three")]
    documents = [texts[0], *filter(None, records), texts[1]]
    separator = [DOCUMENT_SEPARATOR] if boundaries else []
    expected = [token for document in documents for token in [*separator, *document]][len(separator) :]
    assert ids_of(stream) == expected
    assert stream.num_documents == len(documents)
    assert stream.num_tokens == sum(map(len, documents))


def test_documents_are_not_wrapped_without_special_tokens(tmp_path: Path, plain_tokenizer_folder: Path) -> None:
    plain = CorpusTokenizer.load(plain_tokenizer_folder)
    stream = write_token_stream(plain, write(tmp_path, {"a": "one", "b": "two"}), tmp_path / "out", GraphConfig())
    assert ids_of(stream) == plain.encode("one") + plain.encode("two")


def test_text_of_which_a_tokenizer_makes_nothing(tmp_path: Path) -> None:
    letters = CorpusTokenizer("letters", Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])))
    paths = write(tmp_path, {"a.txt": "...", "b.txt": "ab", "c.txt": "?", "d.txt": "b"})
    config = GraphConfig(document_boundaries=True)
    stream = write_token_stream(letters, paths, tmp_path / "out", config)
    separator = DOCUMENT_SEPARATOR
    assert ids_of(stream) == [separator, 0, 1, separator, separator, 1]
    assert (stream.num_tokens, stream.num_documents) == (3, 4)
    with pytest.raises(CorpusError) as caught:
        write_token_stream(letters, [paths[0], paths[2]], tmp_path / "out", config)
    assert caught.value.field == "graph.tokenizer_name"


def test_standard_input_and_pipes(
    tmp_path: Path, tokenizer: CorpusTokenizer, sample_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sample_text * 900
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=pipe.write_text, args=("from a pipe", "utf-8"))
    feeder.start()
    reports: list[tuple[int, int]] = []
    stream = write_token_stream(
        tokenizer,
        [ListedFile(STANDARD_INPUT), ListedFile(pipe)],
        tmp_path / "out",
        GraphConfig(),
        lambda *report: reports.append(report),
    )
    feeder.join()
    assert ids_of(stream) == expected_ids(tokenizer, [text, "from a pipe"])
    assert [(file.name, file.size_bytes) for file in stream.files] == [("-", len(text)), (str(pipe), 11)]
    assert reports[-1] == (len(text) + 11, stream.num_tokens)


def test_tokenizers_that_see_spaces_take_documents_whole(
    tmp_path: Path, sample_text: str, make_tokenizer: Callable[..., Path]
) -> None:
    sentences = Tokenizer(models.BPE())
    sentences.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    sentences.train_from_iterator([sample_text] * 4, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer = CorpusTokenizer("sentences", sentences)
    assert not tokenizer.is_cuttable
    assert CorpusTokenizer.load(make_tokenizer()).is_cuttable
    paths = write(tmp_path, {"a.txt": sample_text * 20})
    stream = write_token_stream(tokenizer, paths, tmp_path / "out", GraphConfig(chunk_size=1024))
    assert ids_of(stream) == tokenizer.encode(sample_text * 20)
