"""File names that are not UTF-8, from the corpus through the graph to the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from speculant_graph.errors import ConfigError
from speculant_graph.file_names import displayed, json_text
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.log import log_to_stderr, silence
from speculant_graph.terminal import printable
from speculant_graph.types import FileName

NAME = os.fsdecode(b"caf\xe9")
SHOWN = r"caf\xe9"


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=8).filter(lambda name: b"\0" not in name))
def test_any_name_survives_storing(name: bytes) -> None:
    adapter = TypeAdapter(FileName)
    decoded = os.fsdecode(name)
    stored = json.dumps(adapter.dump_python(decoded, mode="json"))
    assert adapter.validate_json(stored, strict=True) == decoded
    displayed(decoded).encode()
    printable(decoded).encode()
    json_text([decoded, {"\\": decoded}]).encode("ascii")


@pytest.mark.parametrize("indent", [None, 2])
def test_json_spells_bytes_out_and_nothing_else(indent: int | None) -> None:
    figures = {"a\\udce9": "\\udce9 \U0001f4e9 é", "b": 1.5}
    assert json.loads(json_text(figures, indent)) == figures
    assert json.loads(json_text(figures | {"c": [Path(NAME)]}, indent)) == figures | {"c": [SHOWN]}


def test_errors_and_logs_spell_bytes_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(ConfigError(f"{NAME} is missing", fix=f"make {NAME}")) == f"{SHOWN} is missing; make {SHOWN}"
    from loguru import logger

    try:
        for kind in ("text", "json"):
            log_to_stderr("INFO", kind)
            logger.info("{} is read", NAME)
    finally:
        logger.remove()
        silence()
    text, line = capsys.readouterr().err.splitlines()
    assert text.endswith(f"{SHOWN} is read")
    assert json.loads(line)["message"] == f"{SHOWN} is read"


def speculant(*arguments: str | Path | bytes) -> str:
    """Run a command, check that it succeeds, and return its output."""
    command = [sys.executable, "-m", "speculant_graph.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"Traceback" not in done.stderr
    return done.stdout.decode()


@pytest.mark.slow
def test_everything_may_be_named_by_bytes(tmp_path: Path, tokenizer_folder: Path, sample_text: str) -> None:
    """Build, check, update and show a graph whose corpus, tokenizer, file and page have such names."""
    folder = tmp_path / NAME
    (folder / "corpus").mkdir(parents=True)
    (folder / "corpus" / f"{NAME}.txt").write_text(sample_text, "utf-8")
    (folder / "tokenizer").mkdir()
    for file in tokenizer_folder.iterdir():
        (folder / "tokenizer" / file.name).write_bytes(file.read_bytes())
    graph = folder / f"{NAME}.pkl"
    line, report = speculant(
        "build", folder / "corpus", "-o", graph, "--tokenizer", folder / "tokenizer", "--json-output"
    ).splitlines()
    assert SHOWN in line
    assert json.loads(report)["output"] == str(graph).replace(NAME, SHOWN)
    metadata = NgramGraph.load(graph, complete=True).metadata
    assert [file.name for file in metadata.corpus_files] == [str(folder / "corpus" / f"{NAME}.txt")]
    assert metadata.tokenizer.name == str(folder / "tokenizer")
    shown = speculant("inspect", graph, "--verify", "--json-output")
    assert SHOWN in shown
    assert "udce9" not in shown
    speculant("update", graph, folder / "corpus" / f"{NAME}.txt")
    page = folder / f"{NAME}.html"
    assert SHOWN in speculant("view", graph, "--output", page, "--json-output")
    assert "udce9" not in page.read_text("utf-8")
