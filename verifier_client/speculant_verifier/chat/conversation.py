"""A conversation in the terminal: a line is read, and is a command or a message that gets an answer.

Answers go to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import PurePath
from typing import TYPE_CHECKING, cast

from rich.console import Console

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.view.formatting import printable
from speculant_verifier.console import ACCEPTED_STYLE, DIM_STYLE, RunMeter, write
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.harmony import ChannelSplitter, HarmonyTokens
from speculant_verifier.results import StepEvent

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

COMMANDS = {
    "/help": "list the commands",
    "/system": "TEXT: put a system message before the conversation; without TEXT remove it",
    "/clear": "forget the conversation, not the system message",
    "/quit": "end, as Ctrl-D does",
}
"""Command -> what it does."""


class Input:
    """Where messages come from: a prompt on a terminal, whose history is not kept on disk, or standard input."""

    def __init__(self, *, is_colored: bool) -> None:
        """Set up the prompt, if the input is a terminal."""
        self.is_typed = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        self._session = _session(is_colored=is_colored) if self.is_typed else None

    def read(self) -> str:
        """Return the next line without its end.

        Raises:
            EOFError: there is none.
            KeyboardInterrupt: Ctrl-C.
            ConfigError: standard input is no text.
        """
        if self._session is not None:
            return self._session.prompt()
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ConfigError(f"standard input is no text ({error.reason}); give UTF-8") from error
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")


class Answer:
    """One answer as it comes. Thoughts, and what was drafted, are shown on a terminal."""

    def __init__(self, console: Console, splitter: ChannelSplitter | None) -> None:
        """Begin.

        Args:
            console: where it is shown.
            splitter: splits what models that write in channels say.
        """
        self.text = ""
        """What it consists of so far."""
        self._console, self._splitter = console, splitter
        self._is_reasoning = self._is_line_open = False

    def add(self, event: StepEvent) -> None:
        """Show what a step brought: reasoning dimmed, accepted drafts in their colour."""
        for token_ids, text, is_accepted in (
            (event.token_ids[: event.num_accepted], event.accepted_text, True),
            (event.token_ids[event.num_accepted :], event.text[len(event.accepted_text) :], False),
        ):
            is_last = event.result is not None and not is_accepted
            pieces = self._splitter.push(token_ids, text, final=is_last) if self._splitter else [("content", text)]
            for kind, piece in pieces:
                if kind == "content":
                    self._show_content(piece, ACCEPTED_STYLE if is_accepted else "")
                else:
                    self._show_reasoning(piece)
        self._console.file.flush()

    def end(self) -> None:
        """End its line."""
        if self._is_line_open or (self.text and not self._console.is_terminal):
            self._console.file.write("\n")
            self._console.file.flush()

    def _show_content(self, text: str, style: str) -> None:
        if text and self._is_reasoning:
            self._is_reasoning = False
            self._write("\n\n", "")
        self.text += text
        self._write(text, style)

    def _show_reasoning(self, text: str) -> None:
        if not self._console.is_terminal:
            return
        if not self._is_reasoning and not self._console.color_system:
            self._write("(thinking) ", "")
        self._is_reasoning = True
        self._write(text, DIM_STYLE)

    def _write(self, text: str, style: str) -> None:
        if text:
            write(self._console, text, style)
            self._is_line_open = not text.endswith("\n")


class Conversation:
    """A conversation, from the first message to the end of the input."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        config: GenerationConfig,
        source: Input,
        answers: Console,
        notes: Console,
        system: str = "",
    ) -> None:
        """Begin.

        Args:
            decoder: answers; it has no other callers.
            config: how tokens are chosen.
            source: where messages come from.
            answers: where answers go.
            notes: where everything else goes.
            system: a message before all others, if it is not empty.

        Raises:
            GenerationError: the model has no chat template that takes messages of a user.
        """
        decoder.chat_prompt([{"role": "user", "content": "Hello"}])  # fails now rather than after the first message
        self._decoder, self._config, self._input = decoder, config, source
        self._answers, self._notes, self._system = answers, notes, system
        self._harmony = HarmonyTokens.of(decoder)
        self._messages: list[dict[str, str]] = []
        self._has_failed = False
        self._actions: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/system": self._set_system,
            "/clear": self._clear,
        }

    def run(self) -> int:
        """Talk; return 1 if a message from a pipe had no answer.

        Raises:
            KeyboardInterrupt: Ctrl-C while messages come from a pipe.
        """
        if self._input.is_typed:
            self._note(f"talking with {PurePath(self._decoder.target.name).name}; /help lists commands, Ctrl-D ends")
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
            if line.strip():
                self._handle(line)
        return int(self._has_failed and not self._input.is_typed)

    def _handle(self, line: str) -> None:
        if not line.startswith("/") or line.startswith("//"):
            self._ask(line[1:] if line.startswith("//") else line)
            return
        name, _, argument = line.strip().partition(" ")
        if name in self._actions:
            self._actions[name](argument.strip())
        else:
            self._fail(f"there is no command {name}; /help lists them, and // begins a message with a slash")

    def _ask(self, message: str) -> None:
        asked = [*self._messages, {"role": "user", "content": message}]
        splitter = ChannelSplitter(self._harmony, self._decoder.target.decode) if self._harmony else None
        answer, meter = Answer(self._answers, splitter), RunMeter(self._decoder)
        reason, error, interruption = "", "", None
        try:
            with closing(self._events(asked)) as events:
                for event in events:
                    meter.note(event)
                    answer.add(event)
                    if event.result is not None:
                        reason, error = event.result.finish_reason, event.result.error
        except KeyboardInterrupt as interrupt:
            reason, interruption = "interrupted", interrupt
        except SpeculantError as failure:
            error = str(failure)
        # A half answer is a part of the conversation; what got none, or failed, is as if it had not been asked.
        if not error and (answer.text or reason != "interrupted"):
            self._messages = [*asked, {"role": "assistant", "content": answer.text}]
        answer.end()
        if error:
            self._fail(f"speculant: chat: {error}")
        else:
            why = {"stop": "", "length": ", ended by length"}.get(reason, f", {reason}")
            self._notes.print(printable(meter.line() + why), style=DIM_STYLE, markup=False)
        if interruption is not None and not self._input.is_typed:
            raise interruption

    def _events(self, messages: list[dict[str, str]]) -> Generator[StepEvent, None, None]:
        head = [{"role": "system", "content": self._system}] if self._system else []
        prompt = self._decoder.chat_prompt([*head, *messages])
        return cast("Generator[StepEvent, None, None]", self._decoder.stream([prompt], self._config))

    def _note(self, text: str) -> None:
        """Show something that is no answer."""
        write(self._notes, f"{text}\n")
        self._notes.file.flush()

    def _fail(self, text: str) -> None:
        self._note(text)
        self._has_failed = True

    # --- commands

    def _help(self, _: str) -> None:
        self._note("\n".join(f"{name:<8} {what}" for name, what in COMMANDS.items()))

    def _set_system(self, text: str) -> None:
        self._system = text
        self._note("system message set" if text else "no system message")

    def _clear(self, _: str) -> None:
        self._messages = []
        self._note("the conversation is forgotten")


def _session(*, is_colored: bool) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.output import ColorDepth, create_output

    session: PromptSession[str] = PromptSession(
        FormattedText([("bold", "> ")]) if is_colored else "> ",
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
        color_depth=None if is_colored else ColorDepth.MONOCHROME,
        output=create_output(sys.stderr),  # answers alone go to standard output
    )
    # A terminal that does not report its cursor serves a prompt of a line as well: no warning about that.
    session.app.renderer.cpr_not_supported_callback = None
    return session
