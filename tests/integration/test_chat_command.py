"""``speculant chat`` from a pipe: with a model in this process, with a server, and with harmony channels."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError, GenerationError
from speculant_graph.serving.access import AccessPolicy
from speculant_verifier.chat.command import ChatSettings
from speculant_verifier.chat.conversation import COMMANDS, Conversation
from speculant_verifier.chat.local import LocalBackend
from speculant_verifier.chat.remote import RemoteBackend
from speculant_verifier.chat.renderer import Renderer
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.engine import Request
from speculant_verifier.model import TargetModel
from speculant_verifier.run_statistics import total
from support.harmony import harmony_tokenizer
from support.http_api import serving
from support.tiny_models import tiny_gpt_oss

TEMPLATE = "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}def answer("
THOUGHT, SAID = "A 🦊?", "Fünf. Yes"
ANSWER = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{SAID}<|return|>"
OWN = ["--num-threads", "1", "--no-measure-costs", "--generation.max-tokens", "8"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    """Return what the model answers, message by message, by the plain way."""
    history = [{"role": "system", "content": system}] if system else []
    said = []
    for message in messages:
        history.append({"role": "user", "content": message})
        [result] = decoder.generate([decoder.chat_prompt(history)], GenerationConfig(max_tokens=8))
        history.append({"role": "assistant", "content": result.text})
        said.append(result.text)
    return said


def test_a_pipe_gets_an_answer_for_every_line(model: Path, decoder, capsys, monkeypatch) -> None:
    say(monkeypatch, "Hello", "", "Again")
    assert main(["chat", "--model", str(model), *OWN, "--strategy", "greedy"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "".join(f"{text}\n" for text in answers(decoder, "Hello", "Again"))
    assert shown.err.count("8 tokens, ") == 2
    assert shown.err.count(", no drafter, ended by length\n") == 2


def test_commands(model: Path, decoder, elsewhere: Path, capsys, monkeypatch) -> None:
    say(monkeypatch, "/help", "/system Be brief", "One", "Two", "/retry", "/stats", "/save a.jsonl", "//x", "/clear",
        "One", "/quit", "never")  # fmt: skip
    assert main(["chat", "--model", str(model), *OWN, "--strategy", "tree"]) == 0
    shown = capsys.readouterr()
    one, two, third = answers(decoder, "One", "Two", "/x", system="Be brief")
    assert shown.out == "".join(f"{text}\n" for text in (one, two, two, third, one))
    assert shown.err.count("8 tokens, ") == 5
    assert all(name in shown.err for name in COMMANDS)
    assert "3 answers, 4 messages remembered, 24 tokens" in shown.err
    saved = json.loads((elsewhere / "a.jsonl").read_text(encoding="utf-8"))["messages"]
    assert [each["content"] for each in saved] == ["Be brief", "One", one, "Two", two]
    assert main(["generate", "--prompts", "a.jsonl", "--model", str(model), *OWN]) == 0


def test_lines_that_fail_are_told_and_the_rest_goes_on(model: Path, decoder, elsewhere, capsys, monkeypatch) -> None:
    (elsewhere / "mine").write_text("x", encoding="utf-8")
    say(monkeypatch, "/retry", "/nonsense", "/save", "/save mine", "/save no/where", "x " * 5000, "Hello")
    assert main(["chat", "--model", str(model), *OWN]) == 1
    shown = capsys.readouterr()
    assert shown.out == answers(decoder, "Hello")[0] + "\n"
    for complaint in (
        "nothing to answer again", "no command /nonsense", "needs the name of a file", "can't write mine",
        "can't write no/where", "speculant: chat: the prompt",
    ):  # fmt: skip
        assert complaint in shown.err
    assert (elsewhere / "mine").read_text(encoding="utf-8") == "x"


@pytest.mark.parametrize("name", [".", "~no-such-user/x", "a\0b", "n" * 300])
def test_names_that_no_file_can_have_do_not_end_the_chat(name: str, elsewhere: Path) -> None:
    conversation, notes = silent(f"/save {name}", "/save good.jsonl")
    assert conversation.run() == 0
    assert f"can't write {name[:3]}" in notes.file.getvalue().replace("\\x00", "\0")
    assert [each.name for each in elsewhere.iterdir()] == ["good.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--model", str(MODEL_FOLDER)], 1, "no chat template"),
        (["--generation.n", "2"], 2, "leave --generation.n out"),
        (["--url", "http://127.0.0.1:9/v1"], 1, "http://127.0.0.1:9/v1 does not answer"),
        (["--url", "nowhere"], 2, "write --url http://127.0.0.1:8000/v1"),
        (["--url", "http://127.0.0.1:9/v1", "--graph-path", "g.pkl"], 2, "leave --graph-path"),
        (["--url", "http://example.com/v1", "--api-key", "k"], 2, "would travel unencrypted"),
        (["--url", "http://127.0.0.1:9/v1", "--no-repeat-ngram-size", "2"], 2, "chat: --no-repeat-ngram-size"),
    ],
)
def test_mistakes_are_one_line(capfd, monkeypatch, arguments: list[str], status: int, message: str) -> None:
    say(monkeypatch, "Hello")
    own = [] if "--url" in arguments else ["--num-threads", "1", "--no-measure-costs"]
    assert main(["chat", *arguments, *own]) == status
    shown = capfd.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


class Script:
    """Lines, some of which are Ctrl-C, as if they were typed."""

    is_typed = True

    def __init__(self, *lines: str | None) -> None:
        self._lines = iter(lines)

    def read(self) -> str:
        line = next(self._lines, "/quit")
        if line is None:
            raise KeyboardInterrupt
        return line


@pytest.fixture(scope="module")
def channels() -> Iterator[SpeculativeDecoder]:
    """A decoder of a model that can write in channels."""
    tokenizer = harmony_tokenizer("bytes")
    target = tiny_gpt_oss(vocabulary_size=320)
    target._tokenizer = tokenizer
    target.end_token_ids = frozenset(tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>"]))
    verifier = VerifierConfig(measure_costs=False, num_threads=1)
    with SpeculativeDecoder(target=target, verifier_config=verifier, draft_config=DraftConfig(k=0)) as decoder:
        yield decoder


@pytest.fixture
def writes_answer(channels: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The model writes the answer; the prompts of its requests are noted."""
    prompts: list[tuple[int, ...]] = []
    tokens = tuple(channels.target.tokenizer.encode(ANSWER, add_special_tokens=False))

    def make(*arguments: Any, **options: Any) -> Request:
        prompts.append(arguments[1])
        return Request(*arguments, **options, forced=tokens)

    monkeypatch.setattr("speculant_verifier.text.Request", make)
    return prompts


def text_console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, color_system="standard" if terminal else None)


class Mute:
    """Answers nothing."""

    name = "mute"


def silent(*lines: str) -> tuple[Conversation, Console]:
    """Return a conversation of commands alone, and where it writes notes."""
    notes = text_console(terminal=False)
    return Conversation(Mute(), Script(*lines), Renderer(text_console(terminal=False), notes)), notes


@pytest.mark.parametrize("terminal", [True, False])
def test_only_the_final_channel_is_the_answer(channels, writes_answer, terminal: bool) -> None:
    answers, notes = text_console(terminal=terminal), text_console(terminal=False)
    backend = LocalBackend(channels, GenerationConfig(max_tokens=200))
    conversation = Conversation(backend, Script("Who?", None, "And?"), Renderer(answers, notes))
    assert conversation.run() == 0
    shown = answers.file.getvalue()
    if terminal:
        assert "\x1b[2m" in shown.split(SAID[0])[0]
        assert shown.index(THOUGHT[0]) < shown.index(SAID[0])
    else:
        assert shown == f"{SAID}\n{SAID}\n"
    history = channels.target.decode(writes_answer[-1])
    assert SAID in history
    assert THOUGHT not in history
    assert "analysis" not in history


def test_the_same_from_a_server(channels, writes_answer, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers: this machine is reached past it
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(channels, model_id="m", defaults=GenerationConfig(max_tokens=200)) as api:
        backend = RemoteBackend(f"{api.url}/v1", GenerationConfig(seed=3), "", "")
        assert backend.name == "m"
        deltas = list(backend.answer([{"role": "user", "content": "Who?"}], 0))
        assert ("".join(each.reasoning for each in deltas), "".join(each.content for each in deltas)) == (THOUGHT, SAID)
        assert backend.finish_reason == "stop"
        assert backend.statistics.tokens > 20
        assert backend.statistics.steps > 0
        with pytest.raises(ConfigError, match="serves: m; name one of these"):
            RemoteBackend(f"{api.url}/v1", GenerationConfig(), "", "other")


def test_a_server_that_wants_a_key(channels, writes_answer, tmp_path: Path, capsys, monkeypatch) -> None:
    import hashlib

    path = tmp_path / "access.toml"
    digest = hashlib.sha256(b"mine").hexdigest()
    path.write_text(f'[[clients]]\nname = "a"\ntoken_sha256 = "{digest}"\ntenants = ["a"]\n', encoding="utf-8")
    path.chmod(0o600)
    with serving(channels, AccessPolicy.load(path), model_id="m") as api:
        say(monkeypatch, "Who?")
        assert main(["chat", "--url", f"{api.url}/v1"]) == 1
        assert "the server needs a key" in capsys.readouterr().err
        monkeypatch.setenv("SPECULANT_API_KEY", "mine")
        say(monkeypatch, "Who?")
        assert main(["chat", "--url", f"{api.url}/v1", "--max-tokens", "200"]) == 0
        assert capsys.readouterr().out == f"{SAID}\n"


def test_an_answer_of_a_server_that_was_left_is_counted_by_its_pieces(channels, writes_answer) -> None:
    with serving(channels, model_id="m", defaults=GenerationConfig(max_tokens=200)) as api:
        backend = RemoteBackend(f"{api.url}/v1", GenerationConfig(), "", "")
        with closing(backend.answer([{"role": "user", "content": "Who?"}], 0)) as pieces:
            shown = [next(pieces) for _ in range(4)]
            with pytest.raises(KeyboardInterrupt):
                pieces.throw(KeyboardInterrupt)
        left = backend.statistics
        assert left.tokens == sum(bool(piece.content or piece.reasoning) for piece in shown) > 0
        assert left.first_token_s is not None
        assert sum(1 for _ in backend.answer([{"role": "user", "content": "Who?"}], 0)) > 4
        assert total([left, backend.statistics]).tokens == left.tokens + backend.statistics.tokens
    with pytest.raises(GenerationError, match="does not answer"):
        next(backend.answer([{"role": "user", "content": "Who?"}], 0))


def test_what_a_server_refuses_is_told(channels, capsys, monkeypatch) -> None:
    with serving(channels, model_id="m") as api:
        for path in ("", "/wrong/path"):
            say(monkeypatch, "Hello")
            assert main(["chat", "--url", f"{api.url}{path}"]) == 1
            said = capsys.readouterr().err
            assert said.startswith(f"speculant: chat: there is no OpenAI-compatible API at {api.url}{path} (404: ")
            assert said.endswith("; give the address up to /v1\n")
        say(monkeypatch, "x " * 1000)
        assert main(["chat", "--url", f"{api.url}/v1"]) == 1
        assert "the server refuses (400): messages:" in capsys.readouterr().err


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(decoder: SpeculativeDecoder) -> None:
    class Impatient(LocalBackend):
        """Is interrupted at the third token of its first answer."""

        said: tuple[str, ...] = ()

        def answer(self, messages, attempt):
            for delta in super().answer(messages, attempt):
                yield delta
                if len(self.said) < 3 and not delta.is_accepted:
                    self.said += (delta.content,)
                    if len(self.said) == 3:
                        raise KeyboardInterrupt

    shown, notes = text_console(terminal=False), text_console(terminal=False)
    backend = Impatient(decoder, GenerationConfig(max_tokens=8))
    assert Conversation(backend, Script("Hello", "Again"), Renderer(shown, notes)).run() == 0
    assert re.findall(r"interrupted|ended\s+by\s+length", notes.file.getvalue())[0] == "interrupted"
    kept = "".join(backend.said)
    history = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": kept},
        {"role": "user", "content": "Again"},
    ]
    [expected] = decoder.generate([decoder.chat_prompt(history)], GenerationConfig(max_tokens=8))
    assert shown.file.getvalue() == f"{kept}\n{expected.text}\n"
    assert decoder.num_sequences == 0


def test_answers_have_room_unless_it_is_said() -> None:
    assert ChatSettings().generation.max_tokens == 1024
