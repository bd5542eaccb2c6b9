"""Places of a context in the files of a corpus: as many as its count, and each where an editor shows it."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from speculant_graph.cli.inspect import run
from speculant_graph.cli.main import main
from speculant_graph.corpus import documents as documents_module
from speculant_graph.corpus.search import find_places
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.graph.ngrams import NgramGraph

WORDS = ["the", "value", "of", "a[i]", "nothing\nor", "", "it;", "été", "in\r\nthe", "order", "(and", "value)", "x\ty."]


def built(folder: Path, tokenizer_folder: Path, **settings: object) -> tuple[Path, CorpusTokenizer]:
    output = folder.parent / "g.pkl"
    GraphBuilder(tokenizer_folder, 4, document_boundaries=True, **settings).build(folder, output)
    return output, CorpusTokenizer.load(tokenizer_folder)


@pytest.mark.parametrize("block", [5, 700, 1 << 20])
def test_every_context_has_as_many_places_as_it_was_counted(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(documents_module, "_BLOCK_CHARACTERS", block)
    chance = random.Random(0)
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [" ".join(chance.choices(WORDS, k=500)) for _ in range(2)]
    (folder / "a.txt").write_bytes(texts[0].encode())
    (folder / "b.txt.gz").write_bytes(gzip.compress(texts[1].encode("utf-16")))
    path, tokenizer = built(folder, tokenizer_folder)
    graph = NgramGraph.load(path)
    ids = tokenizer.encode(texts[0].replace("\r\n", "\n"))
    for _ in range(12):
        start, length = chance.randrange(len(ids) - 4), chance.randint(1, 4)
        context = ids[start : start + length]
        if "\ufffd" in tokenizer.decode(context) or not tokenizer.decode(context).strip():
            continue
        found = find_places(graph.metadata.corpus_files, context, tokenizer, 10_000)
        assert found.is_complete
        assert len(found.places) == graph.count(context), tokenizer.decode(context)
        needle = tokenizer.decode(context).lstrip()
        for place in found.places:
            lines = texts["b.txt" in place.file].replace("\r\n", "\n").split("\n")
            rest = "\n".join(lines[place.line - 1 :])[place.column - 1 :]
            assert rest.startswith(needle)


def test_places_in_records_in_other_encodings_and_at_the_beginning(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    end = "the value of a"
    records = [{"text": "other"}, {"note": end, "text": f'é "quoted"\n{end} and {end}'}]
    (folder / "a.jsonl").write_text("\n".join(json.dumps(record) for record in records), "utf-8")
    (folder / "b.json").write_text(json.dumps(records, indent=1, ensure_ascii=False), "utf-8")
    (folder / "c.txt").write_bytes(f"Là, à la forêt et des garçons, {end}\n".encode("cp1252"))
    (folder / "package.json").write_text(f'{{"name": "{end}"}}', "utf-8")
    path, tokenizer = built(folder, tokenizer_folder)
    files = NgramGraph.load(path).metadata.corpus_files
    context = tokenizer.encode(f" {end}")[-3:]
    needle = tokenizer.decode(context).lstrip()
    places = find_places(files, context, tokenizer, 100).places
    assert [Path(place.file).name for place in places] == [
        "a.jsonl",
        "a.jsonl",
        "b.json",
        "b.json",
        "c.txt",
        "package.json",
    ]
    for place in places:
        encoding = "cp1252" if place.file.endswith("c.txt") else "utf-8"
        line = Path(place.file).read_text(encoding).split("\n")[place.line - 1]
        assert line[place.column - 1 :].startswith(needle)
        assert needle in place.text
    assert len({(place.line, place.column) for place in places[:2]}) == 2
    assert find_places(files, context, tokenizer, 5) == (places[:5], (), False)
    assert find_places(files, context, tokenizer, 6).is_complete
    assert '"text"' in Path(files[1].name).read_text("utf-8").split("\n")[places[2].line - 1]
    assert tokenizer.bos_id is not None
    first = tokenizer.encode("Là")
    assert len(find_places(files, [tokenizer.bos_id, *first], tokenizer, 9).places) == 1
    assert find_places(files, [tokenizer.bos_id, *context], tokenizer, 9).places == ()
    assert find_places(files, [tokenizer.bos_id], tokenizer, 9).places == ()


def test_a_search_ends_in_time(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("the value of a\n", "utf-8")
    path, tokenizer = built(folder, tokenizer_folder)
    files = NgramGraph.load(path).metadata.corpus_files
    found = find_places(files, tokenizer.encode(" value"), tokenizer, 9, max_seconds=-1.0)
    assert (found.places, found.is_complete) == ((), False)
    assert len(find_places(files, tokenizer.encode(" value"), tokenizer, 9, max_seconds=60.0).places) == 1


def test_token_ids_of_records_are_searched_as_they_are(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"ids": [1, 2]}\n\n{"ids": [7, 3, 4, 3, 4, 5]}\n', "utf-8")
    path, tokenizer = built(folder, tokenizer_folder, text_field="ids")
    places = find_places(NgramGraph.load(path).metadata.corpus_files, [3, 4, 5], tokenizer, 9).places
    assert [(place.line, place.column) for place in places] == [(3, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of small files, one with a name that is not UTF-8; tests then change or remove some of them."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in (b"caf\xe9.txt", b"changed.txt", b"longer.txt", b"gone.txt", b"pipe.txt"):
        (folder / os.fsdecode(name)).write_text("here is the value of a\n", "utf-8")
    return folder


def test_the_command_prints_places_and_what_it_could_not_search(
    folder: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = built(folder, tokenizer_folder)
    (folder / "changed.txt").write_text("HERE is the value of a\n", "utf-8")
    (folder / "longer.txt").write_text("here is the value of a\n\n", "utf-8")
    (folder / "gone.txt").unlink()
    (folder / "pipe.txt").unlink()
    os.mkfifo(folder / "pipe.txt")
    arguments = [str(path), "--tokenizer", str(tokenizer_folder), "--prompt", "x the value of", "--json"]
    assert run([*arguments, "--places", "3"]) == 0
    *shown, report = capsys.readouterr().out.splitlines()
    found = json.loads(report)
    assert found["places"] == [
        {"file": f"{folder}/caf\\xe9.txt", "line": 1, "column": 9, "page": 0, "text": "here is the value of a"}
    ]
    assert f"  {folder}/caf\\xe9.txt:1:9: here is the value of a" in shown
    states = {Path(file["file"]).name: file["state"] for file in found["places_unsearched"]}
    assert states == {"changed.txt": "changed", "longer.txt": "changed", "gone.txt": "missing", "pipe.txt": "not kept"}
    assert any("changed.txt: not searched, it has changed" in line for line in shown)
    assert sum("not searched, " in line for line in shown) == 3
    assert "  and 1 more file not searched" in shown
    assert found["places_complete"] is True


@pytest.mark.parametrize("prompt", [[], ["--prompt", ""]])
def test_places_of_nothing_are_refused_before_anything_is_read(
    prompt: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        run([str(tmp_path / "gone.pkl"), "--places", "2", *prompt])
    assert caught.value.field == "places"
    assert main(["inspect", str(tmp_path / "gone.pkl"), "--places", "2", *prompt]) == 2
    assert capsys.readouterr().err.count("\n") == 1
