"""The loop: a line is read, and is a command or a message that gets an answer."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path

from speculant_graph.errors import SpeculantError
from speculant_verifier.run_statistics import RunStatistics, total
from speculant_verifier.talk.learning import Learner
from speculant_verifier.talk.partner import Messages, Partner, Piece
from speculant_verifier.talk.reading import LineReader
from speculant_verifier.talk.screen import Screen, Turn

COMMANDS = {
    "/help": "list the commands",
    "/system": "TEXT: put a system message before the conversation; without TEXT remove it",
    "/clear": "forget the conversation, not the system message",
    "/retry": "ask for another answer to the last message",
    "/save": "FILE: write the conversation as a line of JSON, which 'generate --prompts FILE.jsonl' reads",
    "/stats": "show the statistics of all answers together",
    "/adapter": "[list | load NAME | rollback]: show or change the draft model's adapter; load without NAME: none",
    "/train": "train the draft model on what was recorded (--record, --draft-model)",
    "/eval": "compare its adapter with none on what was recorded",
    "/quit": "end, as Ctrl-D does",
}
"""Command -> what it does."""


class Conversation:
    """A conversation, from the first message to the end of the input."""

    def __init__(
        self, partner: Partner, reader: LineReader, screen: Screen, system: str = "", learner: Learner | None = None
    ) -> None:
        """Begin.

        Args:
            partner: answers.
            reader: where messages come from.
            screen: where answers go.
            system: a message before all others, if it is not empty.
            learner: trains the draft model; None where the model is elsewhere.
        """
        self._partner, self._reader, self._screen = partner, reader, screen
        self._system, self._learner = system, learner
        self._messages: list[dict[str, str]] = []
        self._runs: list[RunStatistics] = []
        self._attempt = 0
        self._saved: set[Path] = set()
        self._has_failed = False
        self._actions: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/system": self._set_system,
            "/clear": self._clear,
            "/retry": self._retry,
            "/save": self._save,
            "/stats": self._show_statistics,
            "/adapter": self._change_adapter,
            "/train": lambda _: self._learn(Learner.train),
            "/eval": lambda _: self._learn(Learner.evaluate),
        }

    def run(self) -> int:
        """Talk; return 1 if a message that nobody typed had no answer.

        Raises:
            KeyboardInterrupt: Ctrl-C while messages come from a pipe.
        """
        if self._reader.is_typed:
            self._screen.note(f"talking with {self._partner.name}; /help lists commands, Ctrl-D ends")
        while True:
            try:
                line = self._reader.read()
            except EOFError:
                break
            except KeyboardInterrupt:
                if not self._reader.is_typed:
                    raise
                continue  # the line that was being typed is forgotten
            if not self._take(line):
                break
        return int(self._has_failed and not self._reader.is_typed)

    def _take(self, line: str) -> bool:
        """Do what a line wants; return whether to go on."""
        if not line.strip():
            return True
        if not line.startswith("/") or line.startswith("//"):
            self._attempt = 0
            self._ask(line[1:] if line.startswith("//") else line)
            return True
        name, _, argument = line.strip().partition(" ")
        if name == "/quit":
            return False
        action = self._actions.get(name)
        if action is None:
            self._complain(f"there is no command {name}; /help lists them, and // begins a message with a slash")
        else:
            action(argument.strip())
        return True

    def _ask(self, message: str) -> None:
        asked = [*self._messages, {"role": "user", "content": message}]
        content: list[str] = []
        reasoning: list[str] = []
        reason, error, interruption = "", "", None
        try:
            with closing(self._answer(asked)) as pieces:
                for piece in pieces:
                    content.append(piece.content)
                    reasoning.append(piece.reasoning)
                    self._screen.show(piece)
            reason = self._partner.finish_reason
        except KeyboardInterrupt as interrupt:
            reason, interruption = "interrupted", interrupt
        except SpeculantError as failure:
            reason, error, self._has_failed = "error", str(failure), True
        text = "".join(content)
        # A half answer is a part of the conversation; what got none, or failed, is as if it had not been asked.
        if reason in ("stop", "length") or (text and reason == "interrupted"):
            self._messages = [*asked, {"role": "assistant", "content": text}]
        self._runs.append(self._partner.statistics)
        turn = Turn(len(self._runs), message, text, "".join(reasoning), reason, error, self._runs[-1])
        self._screen.end(turn)
        if interruption is not None and not self._reader.is_typed:
            raise interruption

    def _answer(self, asked: Messages) -> Generator[Piece, None, None]:
        head = [{"role": "system", "content": self._system}] if self._system else []
        return self._partner.answer([*head, *asked], self._attempt)

    # --- commands

    def _help(self, _: str) -> None:
        self._screen.note("\n".join(f"{name:<8} {what}" for name, what in COMMANDS.items()))

    def _set_system(self, text: str) -> None:
        self._system = text
        self._screen.note("system message set" if text else "no system message")

    def _clear(self, _: str) -> None:
        self._messages = []
        self._screen.note("the conversation is forgotten")

    def _retry(self, _: str) -> None:
        if not self._messages:
            self._complain("there is nothing to answer again; write a message first")
            return
        message = self._messages[-2]["content"]
        before, self._messages = self._messages, self._messages[:-2]
        self._attempt += 1
        self._ask(message)
        if not self._messages[len(before) - 2 :]:
            self._messages = before  # the answer that there was is better than none

    def _save(self, name: str) -> None:
        if not name:
            self._complain("/save needs the name of a file")
            return
        head = [{"role": "system", "content": self._system}] if self._system else []
        record = json.dumps({"messages": [*head, *self._messages]}) + "\n"
        try:
            path = Path(name).expanduser()
            if path.exists() and path not in self._saved:
                self._complain(f"{name} is there already; choose another name")
                return
            _write(path, record)
        except (OSError, ValueError, RuntimeError) as error:  # no such folder, no such name, no such user
            reason = getattr(error, "strerror", None) or error
            self._complain(f"can't write {name} ({reason}); choose another name")
            return
        self._saved.add(path)
        self._screen.note(f"{len(self._messages)} messages saved in {name}")

    def _show_statistics(self, _: str) -> None:
        num_turns = len(self._runs)
        if not num_turns:
            self._screen.note("nothing was answered yet")
            return
        answers = f"{num_turns} answer{'' if num_turns == 1 else 's'}"
        run = total(self._runs)
        self._screen.note(f"{answers}, {len(self._messages)} messages remembered, {run.line()}")
        if line := run.recent_line():
            self._screen.note(line)
        if self._partner.adapters is not None:
            self._screen.note(self._partner.adapters.state.line())

    def _change_adapter(self, text: str) -> None:
        adapters = self._partner.adapters
        if adapters is None:
            self._complain("there is no draft model here; start with --draft-model, or see speculant admin adapter")
            return
        action, _, name = text.partition(" ")
        try:
            if action == "load":
                adapters.load(name.strip())
            elif action == "rollback" and not name:
                adapters.rollback()
            elif action not in ("", "list") or name:
                self._complain("/adapter is followed by list, load NAME or rollback")
                return
        except SpeculantError as error:
            self._complain(str(error))
            return
        self._screen.note(adapters.state.line())
        if action in ("", "list"):
            self._screen.note(f"adapters by name: {', '.join(adapters.names) or 'none'}")

    def _learn(self, work: Callable[[Learner], str]) -> None:
        if self._learner is None:
            self._complain("the draft model is trained where the model is; leave --url out")
            return
        try:
            self._screen.note(work(self._learner))
        except SpeculantError as error:
            self._complain(str(error))
        except KeyboardInterrupt:
            if not self._reader.is_typed:
                raise
            self._screen.note("interrupted")

    def _complain(self, text: str) -> None:
        self._screen.note(text)
        self._has_failed = True


def _write(path: Path, text: str) -> None:
    """Write a file in one go, for this user alone."""
    descriptor, temporary = tempfile.mkstemp(prefix=f"{path.name[:100]}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
