"""Which files make a corpus."""

from __future__ import annotations

import errno
import glob
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.corpus.files import STANDARD_INPUT, format_of, list_corpus_files
from speculant_graph.errors import CorpusError


def _write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text", "utf-8")


def test_files_in_order_folders_sorted_and_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    _write(folder, "b.txt", "a.md", "deep/c.py", "deep/d.rst", "picture.png", "../last.log")
    last = tmp_path / "last.log"
    expected = [last, folder / "a.md", folder / "b.txt", folder / "deep/c.py", folder / "deep/d.rst"]
    assert list_corpus_files([last, str(folder), folder / "a.md"]) == expected
    assert list_corpus_files(str(last)) == [last]


def test_a_folder_gives_text_and_records_packed_or_not_and_nothing_hidden(tmp_path: Path) -> None:
    taken = ["a.jsonl", "b.ndjson", "c.pdf", "d.txt.gz", "e.py.ZST", "f.jsonl.zst", "g.TXT"]
    _write(tmp_path, *taken, "h.json", "i.gz", "j.tar.gz", "k.json.gz", ".hidden.txt", ".git/l.txt", "m")
    os.mkfifo(tmp_path / "n.txt")
    assert [file.name for file in list_corpus_files(tmp_path)] == sorted(taken)


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, "docs/a.md", "docs/deep/b.md", "docs/deep/er/c.md", "docs/d.json", "docs/.e.md", "docs/[ab].md")
    docs = tmp_path / "docs"
    monkeypatch.chdir(tmp_path)
    assert list_corpus_files([docs / "*.json", docs / "?.md"]) == [docs / "d.json", docs / "a.md"]
    assert list_corpus_files("docs/[ab].md") == [Path("docs/[ab].md")]  # a file that exists is no pattern
    (docs / "[ab].md").unlink()
    assert list_corpus_files("docs/[ab].md") == [Path("docs/a.md")]
    with pytest.raises(CorpusError, match=r"pattern docs/\*\.tex matches no file; check it"):
        list_corpus_files(["docs/a.md", "docs/*.tex"])


def test_patterns_match_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(
        tmp_path, "a.md", "b/c.md", "b/.d.md", "b/e/f.md", "b/e/g/h.md", ".i/j.md", ".i/k/l.md", "b/m.d/n", "o[1]/p.md"
    )
    monkeypatch.chdir(tmp_path)
    patterns = [
        "*.md", "**/*.md", "**/e/**/*", "b/**/*.md", "b/*/*.md", "b/**/**/g/*", "b/.*.md", ".*/*.md", ".i/**/*.md",
        "**/?", "b/e/[f-h].md", "b/*.d/n", "o[[]1]/*", "./b/../b/*.md", "a.md/*", "no/*", "**/no/*", "*/c.md",
        "**/g/*.md", "**", "b/**",
    ]  # fmt: skip
    for root in ("", f"{glob.escape(str(tmp_path))}/"):
        for pattern in patterns:
            matches = list(map(Path, glob.glob(root + pattern, recursive=True)))
            expected = {match for match in matches if match.is_file()}
            # Of folders that match, their text is taken.
            expected |= {
                file
                for folder in matches
                for file in folder.rglob("*.md")
                if not any(part.startswith(".") for part in file.relative_to(folder).parts)
            }
            found = list_corpus_files(root + pattern) if expected else []
            assert found == sorted(expected), pattern
            if not expected:
                with pytest.raises(CorpusError, match="matches no file"):
                    list_corpus_files(root + pattern)


@pytest.mark.parametrize("corpus", ["docs", "docs/**/*.md", "d*", "**/b*/**/*.md"])
def test_links_lead_to_each_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: str) -> None:
    _write(tmp_path, "docs/b/a.md", "docs/b/c/d.md", "away/e.md", "away/f/g.md")
    monkeypatch.chdir(tmp_path)
    docs = Path("docs")
    for place, target in {
        docs / "b/self": "..",
        docs / "b/again": "..",
        docs / "b/c/up": tmp_path / "docs",
        docs / "a": "b",
        docs / "b/z": tmp_path / "away",
        tmp_path / "away/back": docs.absolute(),
        docs / "b/round": "round",
        docs / "b/nowhere": "nothing",
    }.items():
        place.symlink_to(target)
    found = [file.resolve().relative_to(tmp_path) for file in list_corpus_files(corpus)]
    assert sorted(map(str, found)) == ["away/e.md", "away/f/g.md", "docs/b/a.md", "docs/b/c/d.md"]
    if corpus in ("docs", "docs/**/*.md"):
        names = ["docs/b/a.md", "docs/b/c/d.md", "docs/b/z/e.md", "docs/b/z/f/g.md"]
        assert list(map(str, list_corpus_files(corpus))) == names  # what is not behind a link keeps its name


@pytest.mark.parametrize("corpus", ["docs", "docs/**/*.md", "docs/*/*.md"])
def test_folders_that_can_not_be_read_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: str
) -> None:
    _write(tmp_path, "docs/a.md", "docs/b/c.md", "docs/b/closed/d.md", "docs/closed/e.md", "docs/.git/f.md")
    monkeypatch.chdir(tmp_path)
    closed = {"closed", ".git"}

    def forbidding(real: Callable[..., Any]) -> Callable[[str | Path], Any]:
        def read(path: str | Path) -> Any:
            if Path(path).name in closed:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path)

        return read

    for name in ("scandir", "listdir"):  # permissions of files do not keep an administrator from reading
        monkeypatch.setattr(os, name, forbidding(getattr(os, name)))
    with pytest.raises(CorpusError, match=r"^docs/(b/)?closed can't be read \(Permission denied\); check"):
        list_corpus_files(corpus)
    assert list_corpus_files("docs/*.md") == [Path("docs/a.md")]
    closed.remove("closed")
    assert len(list_corpus_files("docs")) == 4  # a hidden one is none of the corpus


def test_standard_input_and_pipes_are_taken_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert list_corpus_files(["-", tmp_path / "pipe", "-"]) == [STANDARD_INPUT, tmp_path / "pipe"]


def test_what_can_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for corpus, message in (
        ([tmp_path / "nothing.txt"], "does not exist; name"),
        ([tmp_path], "holds no text; name files"),
        ([], "no corpus"),
        ("/dev/null", "device or a socket; name"),
        ("x" * 5000, r"can't be read \(File name too long\); check"),
    ):
        with pytest.raises(CorpusError, match=message):
            list_corpus_files(corpus)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.txt")
        with pytest.raises(CorpusError, match="device or a socket"):
            list_corpus_files("socket.txt")


def test_the_format_is_in_the_name() -> None:
    names = ["a", "a.txt", "a.JSONL.GZ", "a.b.zst", ".gz", "a.gz", "v1.2/a"]
    formats = [("", ""), (".txt", ""), (".jsonl", ".gz"), (".b", ".zst"), ("", ""), ("", ".gz"), ("", "")]
    assert [format_of(Path(name)) for name in names] == formats
