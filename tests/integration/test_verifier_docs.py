"""docs/verifier.md: every block is run as a reader would run it, and its tables are complete."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from speculant_graph.cli.main import main
from speculant_graph.config import GenerationConfig
from speculant_graph.settings import load_settings
from speculant_graph.types import RuleName
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.generate.command import GenerateSettings
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.speculation import load_or_measure
from support.pages import blocks, rows, section

PAGE = (Path(__file__).parents[2] / "docs" / "verifier.md").read_text(encoding="utf-8")
TEXT = "The parties agree to the terms of this agreement. In case of doubt the parties agree to talk.\n"
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds what the page calls my-model, graph.pkl and my-prompts.jsonl; the page is read there."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MODEL_FOLDER, tmp_path / "my-model")
    (tmp_path / "my-model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (tmp_path / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    [prompts] = blocks(PAGE, "jsonl")
    (tmp_path / "my-prompts.jsonl").write_text(prompts, encoding="utf-8")
    assert main(["build", "text.txt", "--tokenizer", "my-model", "-o", "graph.pkl"]) == 0
    return tmp_path


def test_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line for block in blocks(PAGE, "bash") for line in block.splitlines()]
    outputs = []
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "speculant"
        capsys.readouterr()
        assert main([*arguments, "--num-threads", "1", "--no-measure-costs"]) == 0, command
        outputs.append(capsys.readouterr())
    assert len(outputs) == 4
    assert outputs[0].out.count("--- prompt") == 2
    reports = [json.loads(line) for line in outputs[1].out.splitlines()]
    assert [len(report["token_ids"]) for report in reports] == [5, 20]
    assert all(len(at["top"]) == 2 for report in reports for at in report["logprobs"])
    assert outputs[2].out.count("--- prompt 1, sample") == 2
    assert "," not in outputs[3].out


def test_programs(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # For its two decoders costs would be measured for ten seconds.
    monkeypatch.setattr("speculant_verifier.decoder.load_or_measure", partial(load_or_measure, budget_s=0.2))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(PAGE, "python")):
        exec(compile(block, f"docs/verifier.md, block {number}", "exec"), names)
    assert len(names["sampled"].token_ids) <= 20
    assert [each.sample for each in names["samples"]] == [0, 1, 2]
    assert len(names["texts"]) == 3
    assert len(names["answer"].token_ids) == 10
    assert len(names["result"].logprobs) == len(names["result"].token_ids)
    assert "error - the prompt is empty" in capsys.readouterr().out
    assert names["again"].token_ids == names["first"].token_ids
    assert names["again"].num_from_target_cache > 0
    assert names["again"].num_steps < names["first"].num_steps
    assert isinstance(names["record"], RequestRecord)
    assert len(list(names["read_records"]("records"))) + len(names["replay_of"]("records", "", 99)) > 3


def test_the_settings_file(folder: Path) -> None:
    [content] = blocks(PAGE, "toml")
    (folder / "speculant.toml").write_text(content, encoding="utf-8")
    loaded = load_settings(GenerateSettings, "generate", ["x"]).generation
    assert loaded == GenerationConfig(max_tokens=20, stop=(",", "in case"), rule="nasd", logit_bias={17: -5.0})


def test_the_tables_are_complete() -> None:
    assert [row[0].strip("`") for row in rows(section(PAGE, "Rules"))] != []
    assert {row[0].strip("`") for row in rows(section(PAGE, "Rules"))} == set(get_args(RuleName))
    settings = " ".join(row[0] for row in rows(section(PAGE, "Settings of a request")))
    assert set(re.findall(r"`(\w+)`", settings)) == set(GenerationConfig.model_fields)
    fields = " ".join(row[0] for row in rows(section(PAGE, "Detailed mode: whole requests in a database")))
    assert set(re.findall(r"`(\w+)`", fields)) == {field.name for field in dataclasses.fields(RequestRecord)}
