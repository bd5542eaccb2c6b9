"""``speculant bench structured``, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculant_graph.cli.main import main
from speculant_verifier.demo.run import MODEL_FOLDER

CODE = "def f(a):\n    return a + 1\n"


def test_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "edit.jsonl"
    prompt = f"Rename a:\n```python\n{CODE}```\n"
    line = {"workload": "edit", "prompt": prompt, "output": f"```python\n{CODE.replace('a', 'b')}```\n"}
    traces.write_text(json.dumps(line) + "\n", encoding="utf-8")
    arguments = ["--verifier.model-name", str(MODEL_FOLDER), "--records", "2", "--batch", "2", "--nodes", "6"]
    sizes = ["--conversation", "200", "--replay", str(traces), "--json"]
    assert main(["bench", "structured", *arguments, *sizes]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["identical"]
    assert figures["valid_share"] == 1.0
    assert figures["tokens_per_pass_with"] > figures["tokens_per_pass_without"] >= 1.0
    assert figures["second_call_identical"]
    assert figures["second_call_s"] > 0
    assert {"mask_us_p50", "pass_ms", "mask_share", "tokens_per_pass_prediction"} <= figures.keys()
