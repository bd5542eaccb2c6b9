"""A corpus is checked before it is read: all bad files are reported at once, or skipped and listed."""

from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path

import pytest
from pypdf import PdfWriter

from speculant_graph.cli.main import main
from speculant_graph.corpus.source import SkippedFile
from speculant_graph.errors import CorpusError
from speculant_graph.graph.build.builder import BuildProgress, GraphBuilder
from speculant_graph.graph.ngrams import NgramGraph

GOOD = "The parties agree to the terms.\n"


def encrypted_pdf() -> bytes:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.encrypt("secret", algorithm="RC4-128")
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


BAD: dict[str, tuple[bytes, str]] = {
    "binary.ts": (bytes.fromhex("474011100042") * 100, "looks binary; leave it out"),
    "broken.pdf": (b"%PDF-1.4 and nothing more", "is not a readable PDF"),
    "locked.pdf": (encrypted_pdf(), "is encrypted or needs a password; decrypt it"),
    "cut.json": (b'[{"text": "a"}, {"te', "is not JSON (it is cut off"),
    "deep.json": (b"[" * 100_000, "is nested too deeply; correct it"),
    "lines.json": (b'{"text": "a"}\n{"text": "b"}\n', "is not JSON (Extra data"),
    "other.jsonl": (b'{"body": "a"}\n', "line 1: no field 'text' (there are: body); set graph.text_field"),
    "others.json": (b'[{"body": "a"}, {"body": "b"}]', "record 1: no field 'text'"),
    "packed.txt.gz": (b"no archive", "damaged archive"),
    "doubt.c": ("año\n".encode("cp1252"), "in doubt; name the encoding (graph.encoding)"),
}
BAD_RECORDS = {
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b', "line 2: is not JSON (it is cut off", 1),
    "null.jsonl": (b'{"text": null}\n{"text": "b"}\n{"text": 3}\n', "line 1: field 'text' is null", 2),
    "kinds.json": (b'[{"text": "a"}, {"body": "b"}, {"text": ["c"]}]', "record 2: no field 'text'", 2),
    "bytes.jsonl": (
        '{"text": "\u00e9\u00e9\u00e9"}\n'.encode() * 20 + b'{"text": "\xff"}\n"end"\n',
        "line 21: is not UTF-8 (byte 0xff)",
        1,
    ),
    "zeros.jsonl": (b'{"text": "a"}\n\0\0\0\0\n{"text": "b"}\n', "line 2: is not JSON", 1),
    "deep.jsonl": (b'"a"\n' + b"[" * 100_000 + b"\n", "line 2: is nested too deeply", 1),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with good files, and a file for every possible error."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, (data, *_) in {**BAD, **BAD_RECORDS}.items():
        (folder / name).write_bytes(data)
    (folder / "good.txt").write_text(GOOD, "utf-8")
    (folder / "empty.txt").touch()
    (folder / "package.json").write_text('{"name": "x"}', "utf-8")
    (folder / "tsconfig.json").write_text('{ // of "it"\n "a": "http://x", /* , */ "b": [1, 2,], }', "utf-8")
    (folder / "good.json").write_text('[{"text": "a"}, "b"]', "utf-8")
    (folder / "link.txt").symlink_to("nowhere")
    (folder / "circle.txt").symlink_to("circle.txt")
    os.mkfifo(folder / "pipe.txt")
    return folder


ODD = {"circle.txt": "broken link", "link.txt": "broken link (to nowhere)", "pipe.txt": "is a named pipe"}


def test_all_that_is_wrong_is_named_at_once(
    folder: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "g.pkl"
    with pytest.raises(CorpusError) as caught:
        GraphBuilder(tokenizer_folder).build(folder, output)
    expected = {**{name: reason for name, (_, reason) in BAD.items()}, **ODD}
    expected |= {name: reason for name, (_, reason, _) in BAD_RECORDS.items()}
    problems = caught.value.problems
    assert len(problems) == len(expected)
    for (name, reason), problem in zip(sorted(expected.items()), problems, strict=True):
        assert problem.startswith(f"{folder / name}: ")
        assert reason in problem
    text = str(caught.value)
    assert all(problem in text for problem in problems)
    assert "\n" not in text
    assert text.endswith("leave it out with graph.on_error skip")
    assert not output.exists()
    assert main(["build", str(folder), "--tokenizer", str(tokenizer_folder), "-o", str(output)]) == 1
    shown = capsys.readouterr().err
    assert [line for line in shown.splitlines() if line in problems] == list(problems)
    assert shown.splitlines()[-1].startswith(f"speculant: build: {len(problems)} of {len(problems) + 5} files can't")


def test_what_is_left_out_is_listed(folder: Path, tokenizer_folder: Path, tmp_path: Path, warnings: list[str]) -> None:
    output = tmp_path / "g.pkl"
    phases: list[BuildProgress] = []
    graph = GraphBuilder(tokenizer_folder, on_error="skip").build(folder, output, progress=phases.append)
    skipped = {Path(file.name).name: file for file in graph.metadata.skipped}
    assert sorted(skipped) == sorted({**BAD, **BAD_RECORDS, **ODD})
    for name, (_, reason, num_records) in BAD_RECORDS.items():
        assert skipped[name].num_records == num_records
        assert skipped[name].reason.startswith(reason)
    assert all(skipped[name].num_records == 0 for name in {**BAD, **ODD})
    assert {Path(file.name).name for file in graph.metadata.corpus_files} == {
        *BAD_RECORDS, "good.txt", "empty.txt", "package.json", "tsconfig.json", "good.json",
    }  # fmt: skip
    assert graph.metadata.num_documents == len(BAD_RECORDS) + 5 + 20 + 1
    assert NgramGraph.load(output).metadata.skipped == graph.metadata.skipped
    assert phases[0].phase == "check"
    assert any("plain text" in line and "package.json" in line and "tsconfig.json" in line for line in warnings)
    assert sum(line.startswith("left out: ") for line in warnings) == len(skipped)


def test_the_command_tells_what_is_left_out(
    folder: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "g.pkl"
    again = ["build", str(folder), "--tokenizer", str(tokenizer_folder), "-o", str(output), "--on-error", "skip"]
    assert main([*again, "--json"]) == 0
    sentence, report = capsys.readouterr().out.splitlines()
    num_files, num_records = len(BAD) + len(ODD), sum(number for *_, number in BAD_RECORDS.values())
    assert f"{num_files} files and {num_records} records left out" in sentence
    summary = json.loads(report)
    assert (summary["skipped_files"], summary["skipped_records"]) == (num_files, num_records)
    assert [SkippedFile(**file) for file in summary["skipped"]] == list(NgramGraph.load(output).metadata.skipped)
    main(["inspect", str(output)])
    shown = capsys.readouterr().out
    assert f"{num_files} files and {num_records} records left out" in shown
    assert f"{folder / 'null.jsonl'}: line 1: field 'text' is null" in shown
    assert "(and 1 more of its records)" in shown


def test_nothing_is_left(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": 1}\n{"body": 2}\n', "utf-8")
    (tmp_path / "b.jsonl").write_text("{", "utf-8")
    builder = GraphBuilder(tokenizer_folder, on_error="skip")
    with pytest.raises(CorpusError) as caught:
        builder.build(tmp_path, tmp_path / "g.pkl")
    assert [name in problem for name, problem in zip(("a.jsonl", "b.jsonl"), caught.value.problems, strict=True)]
    with pytest.raises(CorpusError) as caught:
        builder.build(tmp_path / "b.jsonl", tmp_path / "g.pkl")
    assert "b.jsonl: line 1" in str(caught.value)


def test_what_is_named_is_not_taken_for_configuration(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}', "utf-8")
    with pytest.raises(CorpusError) as caught:
        GraphBuilder(tokenizer_folder).build(tmp_path / "package.json", tmp_path / "g.pkl")
    assert caught.value.field == "graph.text_field"


def test_sockets_and_files_named_twice(tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # keeps the socket's path short
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text(GOOD, "utf-8")
    (corpus / "b.txt").symlink_to("a.txt")
    builder = GraphBuilder(tokenizer_folder)
    files = builder.build([corpus, corpus / "a.txt", "corpus/b.txt"], tmp_path / "g.pkl").metadata.corpus_files
    assert [file.name for file in files] == [str(corpus / "a.txt")]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("corpus/s.txt")
        with pytest.raises(CorpusError) as caught:
            builder.build(corpus, tmp_path / "g.pkl")
        assert "s.txt" in str(caught.value)
        with pytest.raises(CorpusError) as caught:
            builder.build("corpus/s.txt", tmp_path / "g.pkl")
        assert "s.txt" in str(caught.value)


@pytest.mark.parametrize(
    ("record", "field", "text"),
    [
        ({"clauses": [{"body": "one"}, {"body": "two"}]}, "clauses.body", "one\ntwo"),
        ({"a": [{"b": [{"c": "one"}]}, {"b": {"c": "two"}}, {"b": []}]}, "a.b.c", "one\ntwo"),
        ({"a.b": "named so", "a": [{"b": "no"}]}, "a.b", "named so"),
        ({"clauses": []}, "clauses.body", ""),
    ],
)
def test_dots_lead_through_lists(tmp_path: Path, tokenizer_folder: Path, record: object, field: str, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n" + json.dumps("end"), "utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps(text) + "\n" + json.dumps("end"), "utf-8")
    ours, plain = (
        GraphBuilder(tokenizer_folder, text_field=field).build(tmp_path / name, tmp_path / "g.pkl")
        for name in ("a.jsonl", "b.jsonl")
    )
    assert ours.metadata.num_tokens == plain.metadata.num_tokens
    assert ours.most_common(1_000, 6) == plain.most_common(1_000, 6)


def test_lists_of_ids_follow_each_other_and_elements_of_another_kind_are_named(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    file = tmp_path / "a.jsonl"
    builder = GraphBuilder(tokenizer_folder, text_field="parts.ids")
    file.write_text('{"parts": [{"ids": [1, 2]}, {"ids": [3]}]}', "utf-8")
    assert builder.build(file, tmp_path / "g.pkl").count([1, 2, 3]) == 1
    for other in ("{}", "null", '{"ids": "text"}', '{"ids": null}', '["ids"]'):
        file.write_text(f'{{"parts": [{{"ids": [1, 2]}}, {other}]}}', "utf-8")
        with pytest.raises(CorpusError) as caught:
            builder.build(file, tmp_path / "g.pkl")
        assert "line 1" in str(caught.value)
