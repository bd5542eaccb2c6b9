"""docs/terminal.md: every block is run as a reader would run it, and its tables are complete."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculant_graph.cli.main import main
from speculant_verifier.chat.conversation import COMMANDS
from speculant_verifier.demo.run import MODEL_FOLDER
from support.pages import blocks, rows, section
from support.processes import start_sidecar

PAGE = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text(encoding="utf-8")
TEXT = "The parties agree to the terms of this agreement. In case of doubt the parties agree to talk.\n"
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
ADDRESS = "unix:///tmp/speculant-drafter/drafter.sock"
LINES = [line for block in blocks(PAGE, "bash") for line in block.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the page calls my-model and graph.pkl."""
    folder = tmp_path_factory.mktemp("terminal")
    shutil.copytree(MODEL_FOLDER, folder / "my-model")
    (folder / "my-model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (folder / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    arguments = ["--tokenizer", str(folder / "my-model"), "-o", str(folder / "graph.pkl")]
    assert main(["build", str(folder / "text.txt"), *arguments]) == 0
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where a sidecar serves graph.pkl."""
    sidecar = start_sidecar(folder / "graph.pkl", folder / "run" / "drafter.sock")
    yield sidecar.address
    sidecar.stop()


@pytest.mark.parametrize("line", LINES)
def test_commands(folder: Path, address: str, line: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    typed, _, command = line.rpartition(" | ")
    words = shlex.split(command)
    if ">" in words:
        words = words[: words.index(">")]
    program, *arguments = (word.replace(ADDRESS, address) for word in words)
    assert program == "speculant"
    if typed:
        [name, text] = shlex.split(typed)
        monkeypatch.setattr("sys.stdin", io.StringIO(text.replace("\\n", "\n") if name == "printf" else f"{text}\n"))
    elif arguments[0] == "chat":
        monkeypatch.setattr("sys.stdin", io.StringIO("Who decides?\n"))
        arguments += ["--max-tokens", "30"]  # a reader stops it by Ctrl-C
    if "--model" in arguments:
        arguments += ["--num-threads", "1", "--no-measure-costs"]
    assert main(arguments) == 0, line
    shown = capsys.readouterr()
    assert shown.out
    if "--json" in arguments:
        assert json.loads(shown.out)
    if arguments[0] in ("generate", "chat") and "--json" not in arguments:
        assert "tokens/s" in shown.err


def test_the_tables_are_complete() -> None:
    assert {row[0].strip("`").split()[0] for row in rows(section(PAGE, "Chat"))} == set(COMMANDS)
    named = " ".join(row[0] for row in rows(section(PAGE, "Doctor")))
    assert set(re.findall(r"`--([a-z-]+)`", named)) == {"model", "graph", "drafter"}
