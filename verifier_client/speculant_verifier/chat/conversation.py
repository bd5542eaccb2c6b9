"""The loop: a line is read, and is a command or a message that gets an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from speculant_graph.errors import SpeculantError
from speculant_verifier.chat.backend import Backend
from speculant_verifier.chat.input import Input
from speculant_verifier.chat.renderer import Renderer
from speculant_verifier.run_statistics import RunStatistics, total

COMMANDS = {
    "/help": "list the commands",
    "/system": "TEXT: put a system message before the conversation; without TEXT remove it",
    "/clear": "forget the conversation, not the system message",
    "/retry": "ask for another answer to the last message",
    "/save": "FILE: write the conversation as a line of JSON, which 'generate --prompts FILE.jsonl' reads",
    "/stats": "show the statistics of all answers together",
    "/quit": "end, as Ctrl-D does",
}
"""Command -> what it does."""


class Conversation:
    """A conversation, from the first message to the end of the input."""

    def __init__(self, backend: Backend, source: Input, renderer: Renderer, system: str = "") -> None:
        """Begin.

        Args:
            backend: answers.
            source: where messages come from.
            renderer: where answers go.
            system: a message before all others, if it is not empty.
        """
        self._backend, self._input, self._renderer = backend, source, renderer
        self._system = system
        self._messages: list[dict[str, str]] = []
        self._runs: list[RunStatistics] = []
        self._attempt = 0
        self._has_failed = False
        self._actions: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/system": self._set_system,
            "/clear": self._clear,
            "/retry": self._retry,
            "/save": self._save,
            "/stats": self._show_statistics,
        }

    def run(self) -> int:
        """Talk; return 1 if a message from a pipe had no answer.

        Raises:
            KeyboardInterrupt: Ctrl-C while messages come from a pipe.
        """
        if self._input.is_typed:
            self._renderer.note(f"talking with {self._backend.name}; /help lists commands, Ctrl-D ends")
        while True:
            try:
                line = self._input.read()
            except EOFError:
                break
            except KeyboardInterrupt:
                if not self._input.is_typed:
                    raise
                continue  # the line that was being typed is forgotten
            if line.strip() == "/quit":
                break
            self._handle(line)
        return int(self._has_failed and not self._input.is_typed)

    def _handle(self, line: str) -> None:
        if not line.strip():
            return
        if not line.startswith("/") or line.startswith("//"):
            self._attempt = 0
            self._ask(line[1:] if line.startswith("//") else line)
            return
        name, _, argument = line.strip().partition(" ")
        if name in self._actions:
            self._actions[name](argument.strip())
        else:
            self._fail(f"there is no command {name}; /help lists them, and // begins a message with a slash")

    def _ask(self, message: str) -> None:
        asked = [*self._messages, {"role": "user", "content": message}]
        text, reason, error, interruption = "", "", "", None
        try:
            with closing(self._backend.answer([*self._head, *asked], self._attempt)) as deltas:
                for delta in deltas:
                    text += delta.content
                    self._renderer.show(delta)
            reason = self._backend.finish_reason
        except KeyboardInterrupt as interrupt:
            reason, interruption = "interrupted", interrupt
        except SpeculantError as failure:
            reason, error, self._has_failed = "error", str(failure), True
        # A half answer is a part of the conversation; what got none, or failed, is as if it had not been asked.
        if reason in ("stop", "length") or (text and reason == "interrupted"):
            self._messages = [*asked, {"role": "assistant", "content": text}]
        self._runs.append(self._backend.statistics)
        self._renderer.end(reason, error, self._runs[-1])
        if interruption is not None and not self._input.is_typed:
            raise interruption

    @property
    def _head(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self._system}] if self._system else []

    # --- commands

    def _help(self, _: str) -> None:
        self._renderer.note("\n".join(f"{name:<8} {what}" for name, what in COMMANDS.items()))

    def _set_system(self, text: str) -> None:
        self._system = text
        self._renderer.note("system message set" if text else "no system message")

    def _clear(self, _: str) -> None:
        self._messages = []
        self._renderer.note("the conversation is forgotten")

    def _retry(self, _: str) -> None:
        if not self._messages:
            self._fail("there is nothing to answer again; write a message first")
            return
        before, self._messages = self._messages, self._messages[:-2]
        self._attempt += 1
        self._ask(before[-2]["content"])
        if len(self._messages) < len(before):
            self._messages = before  # the answer that there was is better than none

    def _save(self, name: str) -> None:
        if not name:
            self._fail("/save needs the name of a file")
            return
        try:
            with Path(name).expanduser().open("x", encoding="utf-8") as file:
                file.write(json.dumps({"messages": [*self._head, *self._messages]}) + "\n")
        except (OSError, ValueError, RuntimeError) as error:  # no such folder, no such name, no such user
            self._fail(f"can't write {name} ({getattr(error, 'strerror', None) or error}); choose another name")
            return
        self._renderer.note(f"{len(self._messages)} messages saved in {name}")

    def _show_statistics(self, _: str) -> None:
        if not self._runs:
            self._renderer.note("nothing was answered yet")
            return
        answers = f"{len(self._runs)} answer{'' if len(self._runs) == 1 else 's'}"
        self._renderer.note(f"{answers}, {len(self._messages)} messages remembered, {total(self._runs).line()}")

    def _fail(self, text: str) -> None:
        self._renderer.note(text)
        self._has_failed = True
