"""``speculant chat``: input from a pipe, harmony channels, and interruptions."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.cli.chat import COMMANDS, Conversation
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.engine import Request
from speculant_verifier.model import TargetModel
from speculant_verifier.rules import teacher_forced
from support.tiny_models import tiny_model
from support.tool_models import serving_tools
from support.training import fill_records

TEMPLATE = "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}def answer("
THOUGHT, SAID = "A 🦊?", "Fünf. Yes"
ANSWER = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{SAID}<|return|>"
OWN = ["--num-threads", "1", "--no-measure-costs", "--generation.max-tokens", "8"]
CONFIG = GenerationConfig(max_tokens=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "my-model"
    shutil.copytree(MODEL_FOLDER, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def decoder(model: Path) -> SpeculativeDecoder:
    config = VerifierConfig(model_name=str(model), num_threads=1, measure_costs=False)
    plainly = DraftConfig(strategy="greedy")
    return SpeculativeDecoder(target=TargetModel.load(config), verifier_config=config, draft_config=plainly)


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def answers(decoder: SpeculativeDecoder, *messages: str, system: str = "") -> list[str]:
    """Return the model's replies to messages, by plain decoding."""
    history = [{"role": "system", "content": system}] if system else []
    said = []
    for message in messages:
        history.append({"role": "user", "content": message})
        [result] = decoder.generate([decoder.chat_prompt(history)], CONFIG)
        history.append({"role": "assistant", "content": result.text})
        said.append(result.text)
    return said


def test_commands(model: Path, decoder, capsys, monkeypatch) -> None:
    say(monkeypatch, "/help", "/system Be brief", "One", "", "Two", "//x", "/clear", "One", "/quit now", "never")
    assert main(["chat", "--model", str(model), *OWN, "--strategy", "tree"]) == 0
    shown = capsys.readouterr()
    one, two, third = answers(decoder, "One", "Two", "/x", system="Be brief")
    assert shown.out == "".join(f"{text}\n" for text in (one, two, third, one))
    assert shown.err.count("8 tokens, ") == 4
    assert shown.err.count(", ended by length\n") == 4
    assert all(name in shown.err for name in COMMANDS)


def test_a_line_that_is_no_text(model: Path, capsys, monkeypatch) -> None:
    say(monkeypatch, "\udcff")
    assert main(["chat", "--model", str(model), *OWN]) == 1
    assert "chat: the line is not valid text; give UTF-8\n" in capsys.readouterr().err


class Script:
    """Stands in for typed lines; None means Ctrl-C."""

    is_typed = True

    def __init__(self, *lines: str | None) -> None:
        self._lines = iter(lines)

    def read(self) -> str:
        line = next(self._lines, "/quit")
        if line is None:
            raise KeyboardInterrupt
        return line


def text_console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, color_system="standard" if terminal else None)


@pytest.fixture(scope="module")
def channels() -> Iterator[SpeculativeDecoder]:
    """A decoder whose model uses harmony channels."""
    with serving_tools("harmony-bytes") as (_, api):
        yield api.decoder


@pytest.mark.parametrize("terminal", [True, False])
def test_only_the_final_channel_is_the_answer(channels, monkeypatch, terminal: bool) -> None:
    prompts: list[tuple[int, ...]] = []
    tokens = tuple(channels.target.tokenizer.encode(ANSWER, add_special_tokens=False))

    def make(*arguments: Any, **options: Any) -> Request:
        prompts.append(arguments[1])
        return Request(*arguments, **options, wrap_target=teacher_forced(tokens))

    monkeypatch.setattr("speculant_verifier.conversation.text.Request", make)
    shown, notes = text_console(terminal=terminal), text_console(terminal=False)
    config = GenerationConfig(max_tokens=200)
    assert Conversation(channels, config, Script("Who?", None, "And?"), shown, notes).run() == 0
    text = shown.file.getvalue()
    if terminal:
        assert "\x1b[2m" in text.split(SAID[0])[0]
        assert text.index(THOUGHT[0]) < text.index(SAID[0])
    else:
        assert text == f"{SAID}\n{SAID}\n"
    history = channels.target.decode(prompts[-1])
    assert SAID in history
    assert THOUGHT not in history
    assert "<|channel|>analysis" not in history


@pytest.mark.slow
def test_the_draft_model_is_trained_judged_and_counted_from_the_chat(tmp_path: Path, capsys, monkeypatch) -> None:
    for name, tiny in (("target", tiny_model("llama")), ("draft", tiny_model("llama", seed=1))):
        tiny.model.save_pretrained(tmp_path / name)
        tiny.tokenizer.save_pretrained(tmp_path / name)
        (tmp_path / name / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    records = tmp_path / "records"
    given = ["chat", "--model", str(tmp_path / "target"), *OWN, "--speculation", "on"]
    learning = ["--draft-model", str(tmp_path / "draft"), "--record", str(records), "--learning-rate", "0.04"]
    fill_records(records, tmp_path / "draft")
    say(monkeypatch, "One", "/eval", "/train", "Two", "/stats", "/eval")
    assert main([*given, *learning, "--epochs", "2"]) == 1, "there is no adapter to judge at first"
    shown = capsys.readouterr()
    assert "no adapter is used" in shown.err
    assert "best so far" in shown.err
    assert "the draft model now has adapter" in shown.err
    assert "16 tokens in " in shown.err
    assert "draft model with adapter" in shown.err
    assert "recorded: 2 requests" in shown.err
    assert "\nbetter: " in shown.err
    assert "gate, " not in shown.out, "answers alone go there"
    say(monkeypatch, "/stats")
    assert main([*given, *learning]) == 0
    assert "draft model with adapter" in capsys.readouterr().err, "a new chat uses the published adapter"


@pytest.mark.parametrize("command", ["/train", "/eval"])
def test_without_records_nothing_is_trained(model: Path, command: str, capsys, monkeypatch) -> None:
    say(monkeypatch, command, "/stats")
    assert main(["chat", "--model", str(model), *OWN]) == 1
    shown = capsys.readouterr().err
    assert "--record" in shown
    assert "0 tokens in 0 passes" in shown
