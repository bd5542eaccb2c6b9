"""The files of a corpus: folders, patterns and order."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant_graph.corpus.file_patterns import list_corpus_files as list_files
from speculant_graph.errors import CorpusError


def list_corpus_files(inputs: str | Path | list[str | Path]) -> list[Path]:
    files = list_files(inputs)
    assert not any(file.problem for file in files)
    return [file.path for file in files]


def _write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text", "utf-8")


def test_files_in_order_folders_sorted_and_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    _write(folder, "b.txt", "a.md", "deep/c.py", "deep/d.rst", "picture.png", "../last.log")
    (folder / "self").symlink_to(".")
    (folder / "linked.txt").symlink_to(folder / "b.txt")
    last = tmp_path / "last.log"
    expected = [last, folder / "a.md", folder / "b.txt", folder / "deep/c.py", folder / "deep/d.rst"]
    assert list_corpus_files([last, str(folder), folder / "a.md"]) == expected
    assert list_corpus_files(str(last)) == [last]


def test_a_folder_gives_text_and_records_packed_or_not_and_nothing_hidden(tmp_path: Path) -> None:
    taken = ["a.jsonl", "b.ndjson", "c.pdf", "d.txt.gz", "e.py.GZ", "g.TXT", "h.json", "k.json.gz"]
    _write(tmp_path, *taken, "i.gz", "j.tar.gz", ".hidden.txt", ".git/l.txt", "m")
    assert [file.name for file in list_corpus_files(tmp_path)] == sorted(taken)


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, "docs/a.md", "docs/deep/b.md", "docs/deep/er/c.md", "docs/d.json", "docs/.e.md", "docs/[ab].md")
    docs = tmp_path / "docs"
    monkeypatch.chdir(tmp_path)
    assert list_corpus_files([docs / "*.json", docs / "?.md"]) == [docs / "d.json", docs / "a.md"]
    assert list_corpus_files("docs/[ab].md") == [Path("docs/[ab].md")]  # the name of an existing file is not a pattern
    (docs / "[ab].md").unlink()
    assert list_corpus_files("docs/[ab].md") == [Path("docs/a.md")]
    assert list_corpus_files("docs/**/*.md") == [Path("docs", name) for name in ("a.md", "deep/b.md", "deep/er/c.md")]
    assert list_corpus_files("docs/d*") == [Path("docs", name) for name in ("d.json", "deep/b.md", "deep/er/c.md")]
    with pytest.raises(CorpusError):
        list_corpus_files(["docs/a.md", "docs/*.tex"])


def test_what_can_not_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError):
        list_corpus_files([tmp_path / "nothing.txt"])
    with pytest.raises(CorpusError):
        list_corpus_files([tmp_path])
    with pytest.raises(CorpusError) as caught:
        list_corpus_files([tmp_path / "gone", tmp_path / "*.md", tmp_path])
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "link"])
def test_names_of_no_file_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(CorpusError) as caught:
        list_corpus_files([tmp_path / name])
    assert "\n" not in str(caught.value)
