"""``speculant bench engines`` with the real engines: all tokens are equal, and our drafts need the fewest passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculant_graph.cli.main import main
from support.gguf_file import write_gguf
from support.real_engines import FOLDER, installed

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize(
    ("engine", "program", "batches"),
    [
        ("vllm", "vllm/bin/python", [1, 8]),
        ("llama-cpp-python", "llama-cpp/bin/python", [1]),
        ("llama-server", "llama-server", [1]),
    ],
)
def test_no_token_differs_and_ours_need_the_fewest_passes(
    engine: str,
    program: str,
    batches: list[int],
    checkpoint: Path,
    graph: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed(program)
    gguf = tmp_path / "model.gguf"
    write_gguf(checkpoint, gguf)
    sources = ["--model", str(checkpoint), "--gguf", str(gguf), "--graph", str(graph)]
    arguments = ["--engines", str(FOLDER), "--only", engine, "--limit", "16", "--max-tokens", "60"]
    assert main(["bench", "engines", *sources, *arguments, "--json"]) == 0
    results = [
        each for each in json.loads(capsys.readouterr().out.splitlines()[-1])["results"] if "skipped" not in each
    ]
    assert {each["batch"] for each in results} == set(batches)
    assert all(each["identical"] for each in results)
    for batch in batches:
        for number in (1, 2):
            passes = {
                each["method"]: each["tokens_per_pass"]
                for each in results
                if each["batch"] == batch and each["round"] == number
            }
            ours = {method: value for method, value in passes.items() if method == "speculant"}
            others = {method: value for method, value in passes.items() if not method.startswith("speculant")}
            if engine == "llama-server" and number == 2:
                del others["ngram-mod"]  # remembers earlier requests, unlike the exported table
            assert min(ours.values()) > max(others.values())
