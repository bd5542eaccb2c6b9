"""Commands on a real terminal: colours, Ctrl-C, a typed conversation."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from speculant_graph.cli.main import main
from speculant_verifier.demo.run import MODEL_FOLDER
from support.processes import Sidecar, start_sidecar

pytestmark = pytest.mark.slow

PATIENCE_S = 120
PROGRAM = [sys.executable, "-m", "speculant_graph.cli.main"]
PLAINLY = ["--strategy", "greedy"]
MODEL = ["--model", "my-model", "--num-threads", "1", "--no-measure-costs"]
GREEN, YELLOW, DIM = "\x1b[32m", "\x1b[1;33m", "\x1b[2m"
PROMPT = r">\x08.\[2C"
"""Pattern of the prompt before any input."""
TEMPLATE = "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}def answer("


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a chat model and a graph."""
    folder = tmp_path_factory.mktemp("terminal")
    shutil.copytree(MODEL_FOLDER, folder / "my-model")
    (folder / "my-model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    source = Path(json.__file__).parent
    assert main(["build", str(source), "--tokenizer", str(MODEL_FOLDER), "-o", str(folder / "g.pkl")]) == 0
    return folder


@pytest.fixture(scope="module")
def sidecar(folder: Path) -> Iterator[Sidecar]:
    sidecar = start_sidecar(folder / "g.pkl", folder / "run" / "d.sock")
    yield sidecar
    sidecar.stop()


def on_terminal(folder: Path, *arguments: str, **environment: str) -> pexpect.spawn:
    """Start a command on a new terminal."""
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")}
    variables |= {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environment}
    return pexpect.spawn(
        PROGRAM[0],
        [*PROGRAM[1:], *arguments],
        cwd=str(folder),
        env=variables,
        encoding="utf-8",
        dimensions=(50, 200),
        timeout=PATIENCE_S,
    )


def all_of(process: pexpect.spawn) -> tuple[str, int]:
    """Return the rest of a command's output, and its exit status."""
    process.expect(pexpect.EOF)
    process.close()
    return process.before, process.exitstatus


def test_accepted_tokens_are_coloured_and_explained(folder: Path, sidecar: Sidecar) -> None:
    arguments = ["generate", "def loads(s, *, cls=None, object_hook=None,", *MODEL, "--address", sidecar.address]
    arguments += ["--max-tokens", "40", "--speculation", "on", "--client.deadline-ms", "2000"]
    shown, status = all_of(on_terminal(folder, *arguments))
    assert status == 0
    text = shown[shown.index(f"{GREEN}accepted from the draft") :]
    legend, body = text.split("\r\n", 1)
    assert f"{YELLOW}the model's own" in legend
    assert GREEN in body
    assert YELLOW in body
    assert re.search(r"40 tokens, .* of \d+ drafted accepted .*drafter ok, 0 of \d+ steps", body)
    plain = subprocess.run([*PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    assert "\x1b" not in plain.stdout
    assert plain.stdout.strip() in re.sub(r"\x1b\[[\d;]*m", "", body).replace("\r\n", "\n")


def test_ctrl_c_keeps_what_was_written(folder: Path) -> None:
    arguments = ["generate", "def loads(s):", *MODEL, "--max-tokens", "3500", "--ignore-end-tokens", *PLAINLY]
    process = on_terminal(folder, *arguments)
    process.expect("plain decoding")
    process.expect("\x1b\\[1;33m")
    process.expect("self|return|the")
    process.sendcontrol("c")
    shown, status = all_of(process)
    assert status == 130
    assert "Traceback" not in shown
    assert re.search(r"\d+ tokens, .*no drafter, ended by interruption", shown)
    assert shown.rstrip().endswith("speculant: interrupted")


def test_a_conversation_that_is_typed(folder: Path) -> None:
    arguments = ["chat", *MODEL, "--generation.max-tokens", "3000", "--ignore-end-tokens"]
    process = on_terminal(folder, *arguments)
    process.expect("talking with my-model; /help lists commands, Ctrl-D ends")
    process.expect(PROMPT)
    process.send("Hello\r")
    process.expect("self|return|the")
    process.sendcontrol("c")
    process.expect(r"\x1b\[2m\d+ tokens, .*, interrupted\x1b\[0m")
    process.expect(PROMPT)
    process.send("half a line")
    process.sendcontrol("c")
    process.expect(PROMPT)
    process.send("/cl\t")
    process.expect("/clear")
    process.send("\r")
    process.expect("the conversation is forgotten")
    process.expect(PROMPT)
    process.send("\x1b[A\x1b[A")  # twice the up key: the first message
    process.expect("Hello")
    process.send("\r")
    process.expect("self|return|the")
    process.sendcontrol("c")
    process.expect("interrupted")
    process.expect(PROMPT)
    process.sendcontrol("d")
    shown, status = all_of(process)
    assert status == 0
    assert "Traceback" not in shown
