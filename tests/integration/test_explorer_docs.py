"""docs/explorer.md: what it shows is run, what it lists is complete, and its pictures can be taken again."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.view.question import MAX_BUDGET, MAX_CHARACTERS, MAX_SUCCESSORS, MAX_TOKENS, Question
from support.explorer import TEXT, tokenizer_in
from support.explorer_pictures import DOCS
from support.pages import blocks, rows, section

PAGE = (DOCS / "explorer.md").read_text(encoding="utf-8")
API = section(PAGE, "The API")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Run all commands of the page, one after another; return the JSON that they print."""
    folder = tmp_path_factory.mktemp("docs")
    tokenizer_in(folder / "my-model")
    (folder / "my-text").mkdir()
    (folder / "my-text" / "first.txt").write_text(TEXT, encoding="utf-8")
    script = "\n".join(blocks(PAGE, "bash")).replace("/tmp/speculant-drafter", str(folder / "run"))
    for port in ("9464", "9465"):
        script = script.replace(port, str(free_port()))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p) && wait' EXIT\n{script}"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_the_commands_work(printed: list[Any]) -> None:
    keyed, about, answer = printed
    assert [graph["name"] for graph in keyed["graphs"]] == [graph["name"] for graph in about["graphs"]] == ["graph"]
    assert (answer["text"], answer["draft"]["strategy"]) == ("The parties", "tree")
    assert len(answer["draft"]["nodes"]) == 8


@pytest.mark.slow
def test_the_tables_of_fields_are_complete(printed: list[Any]) -> None:
    answer = printed[-1]
    named = set(re.findall(r"`(\w+)`", "\n".join(row[0] for row in rows(API))))
    assert named == set(Question.model_fields) | set(answer)
    inner = {*answer["blend"], *answer["draft"], *answer["draft"]["nodes"][0], *answer["orders"][0]}
    assert inner <= set(re.findall(r"`(\w+)`", API))


def test_the_limits_are_those_of_the_code() -> None:
    table = {row[0].strip("`"): row[1] for row in rows(API)}
    assert f"{MAX_CHARACTERS:,}" in table["text"]
    assert f"{MAX_TOKENS:,}" in table["token_ids"]
    assert f"1 to {MAX_SUCCESSORS}; {Question(text='').successors}" in table["successors"]
    assert f"1 to {MAX_BUDGET}" in table["budget"]
