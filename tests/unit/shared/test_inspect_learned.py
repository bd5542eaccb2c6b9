"""``speculant inspect --learned``: a tenant's learned text, and its export as one graph."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from speculant_graph.cli.inspect import run
from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning.layers import find_layers, folder_of
from speculant_graph.draft.learning.learned_files import name_of
from speculant_graph.errors import ConfigError
from speculant_graph.graph.ngrams import NgramGraph
from support.graphs import counts_of
from support.learned import SMALL, counted, fold_here, ids, loaded, opened, settled, text_of

FOLD = FoldConfig(enabled=True, young_tokens=100, max_tokens=0)


def learn(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    with opened(folder, 1 << 40, SMALL, FOLD) as files:
        for number in range(1, count + 1):
            files.append("acme", ids(text_of(number)))
            settled(files)


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, dict[str, object]]:
    assert run([*map(str, arguments), "--json"]) == 0
    shown = capsys.readouterr().out
    return shown, json.loads(shown.splitlines()[-1])


@pytest.mark.parametrize("is_open", [False, True])
def test_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_open: bool
) -> None:
    learn(tmp_path, 60, monkeypatch)
    layers = find_layers(folder_of(tmp_path, name_of("acme"))).layers
    assert len(layers) > 1
    with opened(tmp_path, 1 << 40, SMALL) as files:
        young = loaded(files, "acme")
        if not is_open:
            files.close()
        shown, report = inspect(
            capsys, "--learned", tmp_path, "--tenant", "acme", "--export", tmp_path.with_suffix(".all.pkl")
        )
    texts = [text_of(number) for number in range(1, 61)]
    assert report["tokens"] == sum(map(len, texts))
    assert report["young"]["texts"] == len(young)  # type: ignore[index]
    assert report["young"]["tokens"] == sum(map(len, young))  # type: ignore[index]
    files_told: list[dict[str, object]] = report["graphs"]  # type: ignore[assignment]
    for told, layer in zip(files_told, layers, strict=True):
        graph = NgramGraph.load(layer.path)
        assert told["path"] == str(layer.path)
        assert told["tokens"] == graph.metadata.num_tokens
        assert told["ngrams"] == sum(graph.trie.nodes_per_level)
        assert told["file_bytes"] == layer.path.stat().st_size
        assert "2020" < str(told["oldest"]) <= str(told["newest"])
    assert "acme" in shown
    assert report["damaged"] == []
    graph = NgramGraph.load(tmp_path.with_suffix(".all.pkl"), complete=True)
    assert counts_of(graph) == counted(texts)
    assert graph.metadata.num_documents == 60
    assert not list(tmp_path.glob(".all.pkl*"))


def test_all_of_it_may_be_in_files_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plain_tokenizer_folder: Path
) -> None:
    learn(tmp_path, 60, monkeypatch)
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        young = loaded(files, "acme")
        for each in young:
            files.append("young", ids(each))
    expected = counted(map(text_of, range(1, 61))) - counted(young)
    (tmp_path / f"{name_of('acme')}.sqlite").unlink()
    inspect(capsys, "--learned", tmp_path, "--tenant", "acme", "--export", tmp_path.with_suffix(".old.pkl"))
    assert counts_of(NgramGraph.load(tmp_path.with_suffix(".old.pkl"), complete=True)) == expected
    given = ("--learned", tmp_path, "--tenant", "young", "--export", tmp_path.with_suffix(".young.pkl"))
    with pytest.raises(ConfigError) as caught:
        run([*map(str, given)])
    assert caught.value.field == "graph.tokenizer_name"
    _, report = inspect(capsys, *given, "--tokenizer", plain_tokenizer_folder)
    assert report["graphs"] == []
    assert NgramGraph.load(tmp_path.with_suffix(".young.pkl")).metadata.num_documents <= len(young)


def test_damage_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    learn(tmp_path, 60, monkeypatch)
    first, *others = find_layers(folder_of(tmp_path, name_of("acme"))).layers
    first.path.write_bytes(b"no graph")
    shown, report = inspect(capsys, "--learned", tmp_path, "--tenant", "acme")
    assert report["damaged"] == [str(first.path)]
    assert len(report["graphs"]) == len(others)  # type: ignore[arg-type]
    assert "damaged" in shown
    assert first.path.exists(), "nothing is changed"


def test_a_forgotten_tenant_leaves_nothing_and_others_keep_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(tmp_path, 60, monkeypatch)
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        files.append("other", ids(text_of(3)))
        files.save()
        with pytest.raises(ConfigError):  # in use
            run(["--learned", str(tmp_path), "--tenant", "acme", "--forget"])
        assert find_layers(folder_of(tmp_path, name_of("acme"))).layers
    export = tmp_path.with_suffix(".last.pkl")
    _, report = inspect(capsys, "--learned", tmp_path, "--tenant", "acme", "--export", export, "--forget")
    assert report["forgotten"] is True
    assert NgramGraph.load(export).metadata.num_documents == 60
    assert not list(tmp_path.rglob(f"*{name_of('acme')}*"))
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        assert loaded(files, "other") == [text_of(3)]
        assert loaded(files, "acme") == []
    assert run(["--learned", str(tmp_path), "--tenant", "acme", "--forget"]) == 1


@pytest.mark.parametrize("name", ["acme.sqlite", "acme.damaged"])
def test_damaged_text_is_forgotten_too(tmp_path: Path, name: str) -> None:
    opened(tmp_path).close()
    path = tmp_path / name.replace("acme", name_of("acme"))
    path.write_bytes(b"no database" * 500)
    with pytest.raises(ConfigError) as caught:  # not by a mere omission
        run(["--learned", str(tmp_path), "--forget"])
    assert caught.value.field == "tenant"
    assert run(["--learned", str(tmp_path), "--tenant", "acme", "--forget"]) == 0
    assert not path.exists()
    opened(tmp_path).close()


def test_a_folder_that_names_no_tokenizer_is_left_as_it_is(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "shared.sqlite") as connection:
        connection.execute("DELETE FROM states")
    connection.close()
    for folder in (tmp_path, tmp_path / "other"):
        with pytest.raises(ConfigError) as caught:
            run(["--learned", str(folder), "--tenant", "acme", "--forget"])
        assert caught.value.field == "learned"
    opened(tmp_path).close()


def test_what_is_not_there(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for arguments, field in (
        ([], "path"),
        (["--learned", str(tmp_path)], "learned"),
        (["graph.pkl", "--learned", str(tmp_path)], "path"),
        (["graph.pkl", "--tenant", "acme"], "tenant"),
        (["graph.pkl", "--export", str(tmp_path / "export.pkl")], "export"),
        (["graph.pkl", "--forget"], "forget"),
    ):
        with pytest.raises(ConfigError) as caught:
            run(arguments)
        assert caught.value.field == field


def test_an_export_does_not_overwrite_learned_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(tmp_path, 1, monkeypatch)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for path in (*before, tmp_path / "new.pkl"):
        with pytest.raises(ConfigError) as caught:
            run(["--learned", str(tmp_path), "--tenant", "acme", "--export", str(path)])
        assert caught.value.field == "export"
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "new.pkl").exists()
