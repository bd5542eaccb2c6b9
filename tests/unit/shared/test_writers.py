"""All code that replaces files: after any failure there is only the old file."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speculant_graph.engines.llama_cpp.lookup_table import export_llama_lookup
from speculant_graph.errors import SpeculantError
from speculant_graph.files import replace_bytes, replacing
from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids
from speculant_graph.graph.build.combine import merge_graphs, prune_graph, update_graph
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint

Write = Callable[[Path], object]


def _graph(*more: int) -> NgramGraph:
    return build_from_token_ids([1, 2, 3, 1, 2, 4, 1, 2, *more], Fingerprint("test", "00" * 32, 8), max_order=2)


def _page(path: Path, graph: Path) -> object:
    from speculant_graph.cli.view import run

    return run([str(graph), "--output", str(path)])


def _note(path: Path) -> object:
    from speculant_verifier.draft_model.adapter_files import add_to_note

    return add_to_note(path.parent, {"loss": "0.5" * 100})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """Return a folder with a corpus and its graph."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "a.txt").write_text("The parties agree to the terms and to the terms. " * 9, "utf-8")
    GraphBuilder(tokenizer_folder).build(folder / "a.txt", folder / "graph.pkl")
    return folder


@pytest.fixture(
    params=["build", "save", "build and save", "merge", "prune", "update", "export", "page", "curve", "note"]
)
def writer(request: pytest.FixtureRequest, tmp_path: Path, tokenizer_folder: Path, built: Path) -> tuple[Path, Write]:
    """Return a file and a function that writes it again."""
    graph, folder = _graph(), tmp_path / "folder"
    folder.mkdir()
    name, write = {
        "build": ("g.pkl", lambda path: GraphBuilder(tokenizer_folder).build(built / "a.txt", path)),
        "save": ("g.pkl", graph.save),
        "build and save": ("g.pkl", lambda path: _build_and_save(tokenizer_folder, built, path)),
        "merge": ("g.pkl", lambda path: merge_graphs(graph, graph, path)),
        "prune": ("g.pkl", lambda path: prune_graph(graph, 2, path)),
        "update": ("g.pkl", lambda path: update_graph(built / "graph.pkl", built / "a.txt", path)),
        "export": ("g.bin", lambda path: export_llama_lookup(NgramGraph.load(built / "graph.pkl"), path)),
        "page": ("g.html", lambda path: _page(path, built / "graph.pkl")),
        "curve": ("curve.json", lambda path: replace_bytes(path, b'{"tokens": [1]}' * 10)),
        "note": ("speculant.json", _note),
    }[request.param]
    old = folder / name
    if name == "g.pkl":
        _graph(5).save(old)
    else:
        old.write_text('{"loss": 1}')
    return old, write


def _build_and_save(tokenizer: Path, built: Path, path: Path) -> None:
    builder = GraphBuilder(tokenizer)
    builder.build_from_files(built / "a.txt")
    builder.save(path)


def _lose_half(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
    """Stand in for a disk that loses written data."""
    fsync(descriptor)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        os.truncate(f"/proc/self/fd/{descriptor}", status.st_size // 2)


@contextmanager
def _full_disk(num_bytes: int) -> Iterator[None]:
    """Make the system refuse files larger than ``num_bytes``, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _interrupt(descriptor: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("fault", ["the disk loses bytes", "the disk is full", "Ctrl-C"])
def test_a_failing_writer_leaves_the_old_file(
    writer: tuple[Path, Write], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, write = writer
    before = old.read_bytes()
    if fault == "the disk is full":
        with _full_disk(10), pytest.raises(SpeculantError):
            write(old)
    else:
        monkeypatch.setattr(os, "fsync", _lose_half if fault == "the disk loses bytes" else _interrupt)
        with pytest.raises(SpeculantError if fault == "the disk loses bytes" else KeyboardInterrupt):
            write(old)
        monkeypatch.undo()
    assert old.read_bytes() == before
    assert list(old.parent.iterdir()) == [old]


def test_a_writer_follows_links_and_keeps_access(writer: tuple[Path, Write], tmp_path: Path) -> None:
    old, write = writer
    before = old.read_bytes()
    old.chmod(0o640)
    file = tmp_path / "elsewhere"
    old.rename(file)
    old.symlink_to(file)
    write(old)
    assert old.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert file.read_bytes() != before
    assert set(file.parent.iterdir()) == {file, old.parent}
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), OSError(errno.ENOSPC, "full"), ValueError()])
@pytest.mark.parametrize("is_folder", [False, True])
def test_an_error_in_mid_write_leaves_nothing(tmp_path: Path, error: BaseException, is_folder: bool) -> None:
    expected = SpeculantError if isinstance(error, OSError) else type(error)

    def write() -> None:
        with replacing(tmp_path / "a", lambda _: None, is_folder=is_folder) as temporary:
            if is_folder:
                temporary.mkdir()
                (temporary / "part").touch()
            else:
                temporary.touch()
            raise error

    with pytest.raises(expected):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to itself"])
def test_only_ordinary_files_are_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/null")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(path)
    with pytest.raises(SpeculantError):
        replace_bytes(path, b"new")
    assert not Path("/dev/null").is_file()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fault", ["the disk loses bytes", "the name is taken"])
def test_an_adapter_that_can_not_be_published_leaves_the_one_before(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from speculant_verifier.training.publishing import publish
    from support.tiny_models import tiny_model
    from support.training import write_adapter

    target = tmp_path / "legal"
    publish(write_adapter(tmp_path / "first", tiny_model("llama").model), target)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    new = write_adapter(tmp_path / "second", tiny_model("llama").model, seed=1)
    if fault == "the disk loses bytes":
        monkeypatch.setattr(os, "fsync", _lose_half)
    else:
        (tmp_path / "legal.d" / "next").mkdir()
    with pytest.raises((SpeculantError, OSError)):
        publish(new, target)
    monkeypatch.undo()
    if fault == "the name is taken":
        (tmp_path / "legal.d" / "next").rmdir()
    after = {
        path: path.is_file() and path.read_bytes()
        for path in tmp_path.rglob("*")
        if tmp_path / "second" not in (path, *path.parents)
    }
    assert after == before
