"""docs/http.md: every block is run as a reader would run it, and its tables are complete."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.config import DraftConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.http.responses_schemas import ResponsesRequest
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest
from support.http_api import TEMPLATE, Api, serving
from support.pages import blocks, rows, section

PAGE = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the page calls my-model."""
    path = tmp_path_factory.mktemp("docs")
    shutil.copytree(MODEL_FOLDER, path / "my-model")
    (path / "my-model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[Api]:
    config = VerifierConfig(model_name=str(folder / "my-model"), num_threads=1, measure_costs=False)
    draft = DraftConfig(strategy="adaptive", k=4)
    with SpeculativeDecoder(verifier_config=config, draft_config=draft) as decoder, serving(decoder) as running:
        yield running


def test_commands(api: Api) -> None:
    commands = blocks(PAGE, "bash")
    outputs = []
    for command in commands:
        assert ADDRESS in command
        done = subprocess.run(
            ["bash", "-c", command.replace(ADDRESS, api.address)], capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout)
    completion, stream, error = outputs
    assert json.loads(completion)["usage"]["completion_tokens"] == 20
    assert stream.startswith("data: {")
    assert stream.endswith("data: [DONE]\n\n")
    [said] = blocks(PAGE, "json")
    assert json.loads(error) == json.loads(said)


def test_programs(api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(PAGE, "python")):
        exec(compile(block.replace(ADDRESS, api.address), f"docs/http.md, block {number}", "exec"), names)
    names["client"].close()
    output = capsys.readouterr().out
    assert "20 tokens in" in output
    assert "max_tokens - " in output
    assert names["statistics"]["seed"] == 7


def test_the_tables_are_complete(api: Api) -> None:
    def names(cells: list[str]) -> set[str]:
        return set(re.findall(r"`(\w+)`", " ".join(cells)))

    fields = names([row[0] for row in rows(section(PAGE, "Fields"))])
    assert fields == ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()
    fields = names([row[0] for row in rows(section(PAGE, "Responses"))])
    assert fields == ResponsesRequest.model_fields.keys()
    [*cells, seconds] = rows(section(PAGE, "Statistics"))
    told = api.post("completions", {"model": "my-model", "prompt": "x", "max_tokens": 2}).json()["speculant"]
    assert names([row[0] for row in [*cells, seconds]]) == told.keys() | {"warning"}
    assert names([seconds[1]]) == told["seconds"].keys()


def test_the_table_of_errors_is_complete() -> None:
    table = rows(section(PAGE, "Errors"))
    folder = Path(__file__).parents[3] / "verifier_client" / "speculant_verifier" / "http"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    said = {int(row[0]) for row in table}
    assert said == {int(status) for status in re.findall(r"ApiError\(\s*(\d{3}),", source)} | {405, 408, 413}
    codes = {each for pair in re.findall(r"code(?:=| = )\"(\w+)\"", source) for each in [pair]}
    assert set(re.findall(r"`(\w+)`", " ".join(row[1] for row in table))) == codes
