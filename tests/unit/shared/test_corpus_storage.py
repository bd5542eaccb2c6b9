"""A corpus in object storage gives the same graph as the same files on this machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.file_patterns import list_corpus_files
from speculant_graph.corpus.storage import address_of
from speculant_graph.errors import CorpusError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.graph.ngrams import NgramGraph
from support.graphs import assert_same_arrays

WORDS = "the parties agree to the terms of the agreement "
FILES = {
    "text/a.txt": WORDS.encode() * 20,
    "text/deep/b.jsonl": b"".join(json.dumps({"text": WORDS * n}).encode() + b"\n" for n in range(1, 9)),
    "text/c.txt.gz": gzip.compress(WORDS.encode() * 10),
    "text/picture.png": b"\x89PNG",
    "text/.hidden.txt": b"hidden",
}
SHOWN = ["a.txt", "c.txt.gz", "deep/b.jsonl"]


@pytest.fixture(params=["memory", "file"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a folder that holds the files."""
    root = "/bucket" if request.param == "memory" else str(tmp_path)
    storage = fsspec.filesystem(request.param)
    for name, content in FILES.items():
        storage.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        storage.pipe_file(f"{root}/{name}", content)
    yield f"{request.param}://{root}" if request.param == "file" else "memory://bucket"
    if request.param == "memory":
        storage.store.clear()


def built(corpus: Any, folder: Path, tokenizer: Path, **settings: Any) -> NgramGraph:
    config = {"tokenizer_name": str(tokenizer), "max_order": 3, "neural": False, **settings}
    GraphBuilder(**config).build(corpus, folder / "graph.pkl")
    return NgramGraph.load(folder / "graph.pkl", verify=True)


def names(inputs: Any, base: str) -> list[str]:
    found = [address_of(file.path) or "" for file in list_corpus_files(inputs)]
    assert all(each.startswith(base) for each in found)
    return [each.removeprefix(f"{base}/text/") for each in found]


def test_folders_patterns_and_files(base: str) -> None:
    assert names(f"{base}/text", base) == SHOWN
    assert names(f"{base}/text/*.txt", base) == ["a.txt"]
    assert names([f"{base}/text/a.txt", Path(f"{base}/text")], base) == SHOWN


def test_the_graph_is_that_of_local_files(base: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    for name in SHOWN:
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(FILES[f"text/{name}"])
    away = built(f"{base}/text", tmp_path, tokenizer_folder)
    here = built(tmp_path / "local", tmp_path / "local", tokenizer_folder)
    assert_same_arrays(away, here)
    digests = [[(each.sha256, each.size_bytes) for each in graph.metadata.corpus_files] for graph in (away, here)]
    assert digests[0] == digests[1]
    assert [each.name for each in away.metadata.corpus_files] == [f"{base}/text/{name}" for name in SHOWN]


def test_what_is_not_there_is_named(base: str) -> None:
    for wrong in ("nothing.txt", "text/*.rst"):
        with pytest.raises(CorpusError) as caught:
            list_corpus_files(f"{base}/{wrong}")
        assert f"{base}/{wrong}" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_damaged_file_is_left_out(base: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    storage, root = fsspec.core.url_to_fs(base)
    storage.pipe_file(f"{root}/text/c.txt.gz", b"no archive")
    graph = built(f"{base}/text", tmp_path, tokenizer_folder, on_error="skip")
    assert [each.name for each in graph.metadata.skipped] == [f"{base}/text/c.txt.gz"]


def test_a_missing_package_is_named() -> None:
    with pytest.raises(CorpusError) as caught:
        list_corpus_files("nosuchscheme://bucket/a.txt")
    assert "nosuchscheme://bucket/a.txt" in str(caught.value)
    assert GraphConfig().on_error == "fail"
