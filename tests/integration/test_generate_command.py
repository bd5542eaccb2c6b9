"""``speculant generate`` as used by people and scripts, with the demo's model."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.cli.main import main
from speculant_graph.config import GenerationConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% if message['role'] == 'fool' %}{{ raise_exception('no fools') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
PROMPTS = ["def loads(s):", "class Handler:", "import os\n"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def decoder(library: SpeculativeDecoder) -> SpeculativeDecoder:
    return library


def generate(*arguments: str, model: Path = MODEL_FOLDER) -> int:
    own = ["--model", str(model), "--num-threads", "1", "--no-measure-costs"]
    return main(["generate", *own, "--generation.max-tokens", "8", *arguments])


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_several_prompts_are_shown_one_after_the_other(capsys, decoder) -> None:
    expected = [result.text for result in decoder.generate(PROMPTS, GenerationConfig(max_tokens=8))]
    assert generate(*PROMPTS, "--max-batch-size", "2", "--strategy", "greedy") == 0
    shown = capsys.readouterr()
    assert shown.out == "".join(f"--- prompt {number}\n{text}\n" for number, text in enumerate(expected, 1))
    assert "24 tokens, " in shown.err
    assert "3 results (3 length)\n" in shown.err
    assert "plain decoding" in shown.err


def test_objects_for_machines_hold_all_that_a_result_holds(capsys, decoder) -> None:
    settings = GenerationConfig(max_tokens=8, temperature=0.9, seed=3, logprobs=2, n=2, speculation="on")
    arguments = ["--temperature", "0.9", "--seed", "3", "--logprobs", "2", "--generation.n", "2", "--speculation", "on"]
    assert generate(*PROMPTS[:2], *arguments, "--strategy", "tree", "--json-output") == 0
    reports = sorted(objects(capsys.readouterr().out), key=lambda each: (each["prompt_index"], each["sample"]))
    assert [(each["prompt_index"], each["sample"]) for each in reports] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for report, result in zip(reports, decoder.generate(PROMPTS[:2], settings), strict=True):
        assert (report["text"], report["token_ids"]) == (result.text, list(result.token_ids))
        assert (report["finish_reason"], report["error"]) == ("length", "")
        assert [each["token_id"] for each in report["logprobs"]] == report["token_ids"]
        assert [each["logprob"] for each in report["logprobs"]] == pytest.approx(
            [each.logprob for each in result.logprobs], abs=1e-3
        )
        assert all(len(each["top"]) == 2 for each in report["logprobs"])
        assert "".join(each["text"] for each in report["logprobs"]) == report["text"]
        assert len(report["accepted_by_depth"]) <= len(report["drafted_by_depth"])
        assert report["num_accepted"] == sum(report["accepted_by_depth"])
        assert report["num_prompt_tokens"] == len(result.prompt_token_ids)
        assert 0 < report["times"]["forward_s"] <= report["times"]["total_s"]


def test_a_file_of_prompts(elsewhere: Path, capsys, decoder) -> None:
    lines = [
        json.dumps(PROMPTS[0]),
        "",
        json.dumps({"prompt": PROMPTS[1], "output": "of a trace"}),
        json.dumps({"prompt": [5, 6, 7]}),
        json.dumps({"prompt": [5, 99_999]}),
    ]
    (elsewhere / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert generate(PROMPTS[2], "--prompts", "prompts.jsonl", "--json") == 1
    shown = capsys.readouterr()
    reports = sorted(objects(shown.out), key=lambda each: each["prompt_index"])
    expected = decoder.generate([PROMPTS[2], PROMPTS[0], PROMPTS[1], [5, 6, 7]], GenerationConfig(max_tokens=8))
    assert [each["text"] for each in reports[:4]] == [each.text for each in expected]
    assert reports[4]["finish_reason"] == "error"
    assert "outside" in reports[4]["error"]
    assert "speculant: generate: line 5 of 'prompts.jsonl': the prompt holds token ids outside" in shown.err


def test_plain_lines_of_a_file_and_of_standard_input(elsewhere: Path, capsys, monkeypatch) -> None:
    text = '{"prompt": 1}\n\nx = [\n'
    (elsewhere / "prompts.txt").write_text(text, encoding="utf-8")
    assert generate("--prompts", "prompts.txt") == 0
    shown = capsys.readouterr().out
    assert shown.count("--- prompt") == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert generate("--prompts", "-") == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 of 'p.jsonl' is not JSON"),
        ('{"prompt": [true]}', "neither text nor a list of token ids"),
        ('{"prompt": "a", "generation": {"n": 1}}', "give them as flags, without 'generation'"),
        ("", "holds no prompts"),
    ],
)
def test_mistakes_in_a_file_of_prompts_are_one_line(elsewhere: Path, capfd, line: str, message: str) -> None:
    (elsewhere / "p.jsonl").write_text(line, encoding="utf-8")
    assert generate("--prompts", "p.jsonl") == 2
    shown = capfd.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--stop", ""],
        ["--generation.min-tokens", "9"],
        ["--json-schema", '{"type": "obj'],
        ["--json-schema", '{"type": "no such"}'],
        ["--grammar", "start: ("],
    ],
    ids=str,
)
def test_a_setting_that_is_wrong_for_every_prompt_is_a_wrong_setting(capfd, arguments: list[str]) -> None:
    assert generate("x", *arguments) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_conversations_go_through_the_template_of_the_model(elsewhere: Path, capsys, decoder) -> None:
    model = elsewhere / "model"
    shutil.copytree(MODEL_FOLDER, model)
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    lines = [{"prompt": "Hi"}, {"messages": [{"role": "user", "content": "Ho"}]}]
    (elsewhere / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert generate("Hello", "--chat", "--system", "Be kind", "--prompts", "chats.jsonl", "--json", model=model) == 0
    texts = [
        "system: Be kind\nuser: Hello\nassistant:",
        "system: Be kind\nuser: Hi\nassistant:",
        "user: Ho\nassistant:",
    ]
    expected = decoder.generate(texts, GenerationConfig(max_tokens=8))
    reports = sorted(objects(capsys.readouterr().out), key=lambda each: each["prompt_index"])
    assert [each["text"] for each in reports] == [each.text for each in expected]
    lines.append({"messages": [{"role": "fool", "content": "Ha"}]})
    (elsewhere / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert generate("--prompts", "chats.jsonl", model=model) == 1
    assert "line 3 of 'chats.jsonl': the chat template refuses the messages: no fools" in capsys.readouterr().err
