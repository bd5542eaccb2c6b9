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
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.engine import Request
from speculant_verifier.model import TargetModel
from speculant_verifier.run_statistics import total
from speculant_verifier.talk.command import ChatSettings
from speculant_verifier.talk.conversation import COMMANDS, Conversation
from speculant_verifier.talk.local import LocalPartner
from speculant_verifier.talk.remote import RemotePartner
from speculant_verifier.talk.screen import JsonScreen, TextScreen
from support.adapters import adapted_decoder, adapter_folders
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


def test_commands_and_objects(model: Path, decoder, elsewhere: Path, capsys, monkeypatch) -> None:
    say(monkeypatch, "/help", "/system Be brief", "One", "Two", "/retry", "/stats", "/save a.jsonl", "/save a.jsonl",
        "//x", "/clear", "One", "/quit", "never")  # fmt: skip
    assert main(["chat", "--model", str(model), *OWN, "--json", "--strategy", "tree"]) == 0
    shown = capsys.readouterr()
    turns = [json.loads(line) for line in shown.out.splitlines()]
    one, two, third = answers(decoder, "One", "Two", "/x", system="Be brief")
    assert [turn["message"] for turn in turns] == ["One", "Two", "Two", "/x", "One"]
    assert [turn["content"] for turn in turns] == [one, two, two, third, one]
    assert [turn["turn"] for turn in turns] == [1, 2, 3, 4, 5]
    assert all(turn["statistics"]["tokens"] == 8 and turn["error"] is None for turn in turns)
    assert all(name in shown.err for name in COMMANDS)
    assert "3 answers, 4 messages remembered, 24 tokens" in shown.err
    assert re.search(r"\nlatest \d requests?: \d+\.\d\d per step, \d+% drafted\n", shown.err)
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
        "nothing to answer again", "no command /nonsense", "needs the name of a file", "mine is there already",
        "can't write no/where", "speculant: chat: the prompt",
    ):  # fmt: skip
        assert complaint in shown.err
    assert (elsewhere / "mine").read_text(encoding="utf-8") == "x"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (".", ". is there already"),
        ("/", "/ is there already"),
        ("~no-such-user/x", "can't write ~no-such-user/x"),
        ("a\0b", "can't write a"),
        ("n" * 300, "can't write nnn"),
    ],
)
def test_names_that_no_file_can_have_do_not_end_the_chat(name: str, complaint: str, elsewhere: Path) -> None:
    conversation, notes = silent(f"/save {name}", "/save good.jsonl")
    assert conversation.run() == 0
    assert complaint in notes.file.getvalue()
    assert [each.name for each in elsewhere.iterdir()] == ["good.jsonl"]


def test_saving_touches_no_other_file(elsewhere: Path) -> None:
    (elsewhere / "a.part").write_text("mine", encoding="utf-8")
    (elsewhere / "b.part").symlink_to(elsewhere / "a.part")
    conversation, _ = silent("/save a", "/save b", "/save a")
    assert conversation.run() == 0
    assert (elsewhere / "a.part").read_text(encoding="utf-8") == "mine"
    assert {each.name for each in elsewhere.iterdir()} == {"a", "b", "a.part", "b.part"}
    assert json.loads((elsewhere / "a").read_text(encoding="utf-8")) == {"messages": []}
    assert (elsewhere / "a").stat().st_mode & 0o777 == 0o600


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

    name, adapters = "mute", None


def silent(*lines: str) -> tuple[Conversation, Console]:
    """Return a conversation of commands alone, and where it writes notes."""
    notes = text_console(terminal=False)
    return Conversation(Mute(), Script(*lines), TextScreen(text_console(terminal=False), notes)), notes


@pytest.mark.parametrize("terminal", [True, False])
def test_only_the_final_channel_is_the_answer(channels, writes_answer, terminal: bool) -> None:
    answers, notes = text_console(terminal=terminal), text_console(terminal=False)
    partner = LocalPartner(channels, GenerationConfig(max_tokens=200))
    conversation = Conversation(partner, Script("Who?", None, "And?"), TextScreen(answers, notes))
    assert conversation.run() == 0
    shown = answers.file.getvalue()
    if terminal:
        assert "\x1b[2m" in shown.split(SAID)[0]
        assert shown.index(THOUGHT[0]) < shown.index(SAID[0])
    else:
        assert shown == f"{SAID}\n{SAID}\n"
    history = channels.target.decode(writes_answer[-1])
    assert SAID in history
    assert THOUGHT not in history
    assert "analysis" not in history


def test_the_same_from_a_server(channels, writes_answer, capsys, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers: this machine is reached past it
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(channels, model_id="m", defaults=GenerationConfig(max_tokens=200)) as api:
        say(monkeypatch, "Who?", "And?")
        assert main(["chat", "--url", f"{api.url}/v1", "--json", "--seed", "3"]) == 0
        turns = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(turn["reasoning"], turn["content"]) for turn in turns] == [(THOUGHT, SAID)] * 2
        assert all(turn["statistics"]["tokens"] > 20 and turn["statistics"]["steps"] for turn in turns)
        history = channels.target.decode(writes_answer[-1])
        assert SAID in history
        assert THOUGHT not in history
        with pytest.raises(ConfigError, match="does not serve 'other'; it serves: m"):
            RemotePartner(f"{api.url}/v1", GenerationConfig(), "", "other")


def test_a_server_that_wants_a_key(channels, writes_answer, tmp_path: Path, capsys, monkeypatch) -> None:
    import hashlib

    path = tmp_path / "access.toml"
    digest = hashlib.sha256(b"mine").hexdigest()
    path.write_text(f'[[clients]]\nname = "a"\ntoken_sha256 = "{digest}"\ntenants = ["a"]\n', encoding="utf-8")
    path.chmod(0o600)
    with serving(channels, AccessPolicy.load(path), model_id="m") as api:
        say(monkeypatch, "Who?")
        assert main(["chat", "--url", f"{api.url}/v1"]) == 1
        assert "the server wants a key" in capsys.readouterr().err
        monkeypatch.setenv("SPECULANT_API_KEY", "mine")
        say(monkeypatch, "Who?")
        assert main(["chat", "--url", f"{api.url}/v1", "--max-tokens", "200"]) == 0
        assert capsys.readouterr().out == f"{SAID}\n"


def test_an_answer_of_a_server_that_was_left_is_counted_by_its_pieces(channels, writes_answer) -> None:
    with serving(channels, model_id="m", defaults=GenerationConfig(max_tokens=200)) as api:
        partner = RemotePartner(f"{api.url}/v1", GenerationConfig(), "", "")
        with closing(partner.answer([{"role": "user", "content": "Who?"}], 0)) as pieces:
            shown = [next(pieces) for _ in range(4)]
            with pytest.raises(KeyboardInterrupt):
                pieces.throw(KeyboardInterrupt)
        left = partner.statistics
        assert left.tokens == sum(bool(piece.content or piece.reasoning) for piece in shown) > 0
        assert left.first_token_s is not None
        assert left.line().startswith(f"at least {left.tokens} token")
        assert sum(1 for _ in partner.answer([{"role": "user", "content": "Who?"}], 0)) > 4
        whole = partner.statistics
        assert not whole.has_more_tokens
        assert whole.tokens > left.tokens
        assert total([left, whole]).line().startswith(f"at least {left.tokens + whole.tokens} tokens, at least ")
    with pytest.raises(GenerationError, match="does not answer"):
        next(partner.answer([{"role": "user", "content": "Who?"}], 0))
    assert not partner.statistics.has_more_tokens


def test_an_address_with_no_api_behind_it_says_where_to_look(channels, capsys, monkeypatch) -> None:
    with serving(channels, model_id="m") as api:
        for path in ("", "/wrong/path", "/v1/chat/completions"):
            say(monkeypatch, "Hello")
            assert main(["chat", "--url", f"{api.url}{path}"]) == 1
            said = capsys.readouterr().err
            assert said.startswith(f"speculant: chat: there is no OpenAI-compatible API at {api.url}{path} (404: ")
            assert said.endswith(f"; give the address where it begins, such as {api.url}/v1\n")


def test_a_refusal_of_the_server_is_one_turns_error(channels, capsys, monkeypatch) -> None:
    with serving(channels, model_id="m") as api:
        say(monkeypatch, "x " * 1000)
        assert main(["chat", "--url", f"{api.url}/v1", "--json"]) == 1
        [turn] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert turn["finish_reason"] == "error"
        assert "the server refuses (400): messages:" in turn["error"]


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(decoder: SpeculativeDecoder) -> None:
    class Impatient(LocalPartner):
        """Is interrupted at the third piece of its first answer."""

        count = 0

        def answer(self, messages, attempt):
            for piece in super().answer(messages, attempt):
                yield piece
                self.count += 1
                if self.count == 3:
                    raise KeyboardInterrupt

    answers, notes = text_console(terminal=False), text_console(terminal=False)
    partner = Impatient(decoder, GenerationConfig(max_tokens=8))
    conversation = Conversation(partner, Script("Hello", "Again"), JsonScreen(answers, notes))
    assert conversation.run() == 0
    first, second = (json.loads(line) for line in answers.file.getvalue().splitlines())
    assert (first["finish_reason"], first["statistics"]["tokens"]) == ("interrupted", 3)
    assert second["finish_reason"] == "length"
    history = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "Again"},
    ]
    [expected] = decoder.generate([decoder.chat_prompt(history)], GenerationConfig(max_tokens=8))
    assert second["content"] == expected.text
    assert decoder.num_sequences == 0


def test_answers_have_room_unless_it_is_said() -> None:
    assert ChatSettings().generation.max_tokens == 1024


def test_the_adapter_of_a_draft_model_here(tmp_path: Path) -> None:
    with adapted_decoder(tmp_path, adapter_folders(tmp_path)) as decoder:
        decoder.target.tokenizer.chat_template = TEMPLATE
        partner = LocalPartner(decoder, GenerationConfig(max_tokens=8, speculation="on"))
        swaps = (
            "/adapter",
            "Hello",
            "/adapter load small",
            "/retry",
            "/stats",
            "/adapter rollback",
            "/adapter rollback",
        )
        wrong = ("/adapter load other", "/adapter load", "/adapter forget", "/adapter list of all")
        answers, notes = text_console(terminal=False), text_console(terminal=False)
        assert Conversation(partner, Script(*swaps, *wrong), TextScreen(answers, notes)).run() == 0
        assert decoder.adapters is not None
        assert decoder.adapters.state.present.name == ""
    first, second = answers.file.getvalue().splitlines()
    assert first == second
    said = notes.file.getvalue()
    assert "draft model with no adapter: not judged yet, 0 passes\nadapters by name: small, random, other" in said
    assert re.search(r"draft model with adapter 'small': right about \d+% of the latest \d+ tokens, \d+ passes", said)
    assert said.count("there is no adapter to go back to") == 1
    assert "is for the model 'another'" in said
    assert said.count("/adapter is followed by list, load NAME or rollback") == 2


def test_without_a_draft_model_there_is_no_adapter() -> None:
    conversation, notes = silent("/adapter list")
    assert conversation.run() == 0
    assert "there is no draft model here" in notes.file.getvalue()
