"""``speculant chat``: chat with a model in the terminal.

Each input line is a command or a message to the model. Answers go to standard output, everything else to standard
error.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field

from speculant_graph.config import GenerationConfig, TrainConfig
from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import load_settings
from speculant_graph.terminal import printable
from speculant_verifier.cli.chat_training import ChatTraining
from speculant_verifier.cli.console import ACCEPTED_STYLE, DIM_STYLE, RunMeter, make_console, write
from speculant_verifier.cli.decoding_settings import DecodingSettings

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from rich.console import Console

    from speculant_verifier.conversation.tool_calls import Splitter
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.results import StepEvent

COMMANDS = {
    "/help": "list the commands",
    "/system": "TEXT: put a system message before the conversation; without TEXT remove it",
    "/clear": "forget the conversation, not the system message",
    "/stats": "show statistics of drafting",
    "/train": "train the draft model on the records, and draft with the result if it is better",
    "/eval": "compare the current adapter with the draft model without one",
    "/quit": "end, as Ctrl-D does",
}
"""The chat commands and their descriptions, as /help lists them."""


class ChatGenerationConfig(GenerationConfig):
    """Sampling settings of a chat; the default token limit is higher than elsewhere, because answers may be long."""

    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Maximum number of new tokens per answer."""


class ChatSettings(DecodingSettings):
    """Chat with a model, using the flags of 'generate'. Each typed or piped line is a message; /help lists commands.

    Ctrl-C stops an answer, and Ctrl-D ends the chat. Answers go to standard output, everything else to standard error.
    The exit status is 1 if a message or command from a pipe failed.
    """

    system: str = ""
    """System message at the start of the conversation; empty for none."""
    color: Literal["auto", "never", "always"] = "auto"
    """Colour accepted draft tokens, and dim all text except answers. 'auto' does this only on a terminal, and not if
    NO_COLOR is set."""
    generation: ChatGenerationConfig = ChatGenerationConfig()
    """Settings for sampling and for the length of the output."""
    train: TrainConfig = TrainConfig()
    """Settings with which /train trains the draft model."""


def run(arguments: Sequence[str]) -> int:
    """Chat until the input ends; return exit status 1 if a message or command from a pipe failed, else 0.

    Raises:
        ConfigError: settings are invalid, or the model can't be loaded.
        GenerationError: the model has no chat template.
    """
    settings = load_settings(ChatSettings, "chat", arguments)
    if settings.generation.n > 1:
        raise ConfigError("a conversation has one answer at a time; leave generation.n out")
    from speculant_verifier.cli.generate import open_decoder

    log_to_stderr("WARNING")
    answers, notes = make_console(settings.color), make_console(settings.color, stderr=True)
    with open_decoder(settings, settings.color) as decoder:
        source = Input(is_colored=bool(notes.color_system))
        training = ChatTraining(
            decoder,
            settings.draft_model,
            settings.record,
            settings.train,
            settings.client.tenant,
            lambda line: write(notes, f"{line}\n"),
        )
        return Conversation(decoder, settings.generation, source, answers, notes, settings.system, training).run()


class Input:
    """Reads messages from standard input. On a terminal, shows an input prompt; does not save typed lines."""

    def __init__(self, *, is_colored: bool) -> None:
        """Set up the input prompt if standard input is a terminal."""
        self.is_typed = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        self._session = _session(is_colored=is_colored) if self.is_typed else None

    def read(self) -> str:
        """Return the next input line without its line break.

        Raises:
            EOFError: the input has ended.
            KeyboardInterrupt: Ctrl-C.
            ConfigError: standard input is not text.
        """
        if self._session is not None:
            return self._session.prompt()
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ConfigError(f"standard input is not text ({error.reason}); give UTF-8") from error
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")


class Answer:
    """Prints one answer as it arrives; on a terminal, also prints reasoning and marks accepted draft tokens."""

    def __init__(self, console: Console, splitter: Splitter | None) -> None:
        """Begin.

        Args:
            console: the output.
            splitter: splits answers into reasoning and content; None if the whole answer is content.
        """
        self.text = ""
        """Text of the answer received so far, without reasoning."""
        self._console, self._splitter = console, splitter
        self._is_reasoning = self._has_begun = False

    def add(self, event: StepEvent) -> None:
        """Show the text of a decoding step, with reasoning dimmed and accepted draft tokens coloured."""
        for token_ids, text, style in (
            (event.token_ids[: event.num_accepted], event.accepted_text, ACCEPTED_STYLE),
            (event.token_ids[event.num_accepted :], event.text[len(event.accepted_text) :], ""),
        ):
            is_last = event.result is not None and not style
            pieces = self._splitter.push(token_ids, text, final=is_last) if self._splitter else [("content", text)]
            for kind, piece in pieces:
                if kind == "content":
                    self.text += piece
                    self._show(piece, style, is_reasoning=False)
                elif self._console.is_terminal:
                    self._show(piece, DIM_STYLE, is_reasoning=True)

    def end(self) -> None:
        """End the line."""
        if self._has_begun:
            write(self._console, "\n")

    def _show(self, text: str, style: str, *, is_reasoning: bool) -> None:
        if not text:
            return
        if is_reasoning != self._is_reasoning:
            write(self._console, "(thinking) " if is_reasoning else "\n\n", DIM_STYLE)
        self._is_reasoning, self._has_begun = is_reasoning, True
        write(self._console, text, style)


class Conversation:
    """Runs a conversation, from the first message to the end of the input."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        config: GenerationConfig,
        source: Input,
        answers: Console,
        notes: Console,
        system: str = "",
        training: ChatTraining | None = None,
    ) -> None:
        """Begin.

        Args:
            decoder: the decoder that generates the answers; nothing else may use it.
            config: sampling settings.
            source: source of messages.
            answers: console for answers.
            notes: console for all text except answers.
            system: a system message at the start, if not empty.
            training: object for the commands /stats, /train and /eval; None disables these commands.

        Raises:
            GenerationError: the model has no chat template that accepts user messages.
        """
        decoder.chat_prompt([{"role": "user", "content": "Hello"}])  # fail now instead of after the first message
        self._decoder, self._config, self._input = decoder, config, source
        self._answers, self._notes, self._system = answers, notes, system
        self._training = training
        self._messages: list[dict[str, str]] = []
        self._has_failed = False

    def run(self) -> int:
        """Run the chat; return exit status 1 if a message or command from a pipe failed, else 0.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed while messages were read from a pipe.
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
                continue  # drop the partly typed line
            if line.split()[:1] == ["/quit"]:
                break
            if line.strip():
                self._handle(line)
        return int(self._has_failed and not self._input.is_typed)

    def _handle(self, line: str) -> None:
        if not line.startswith("/") or line.startswith("//"):
            self._ask(line[1:] if line.startswith("//") else line)
            return
        name, _, argument = line.strip().partition(" ")
        if name == "/help":
            self._note("\n".join(f"{name:<8} {what}" for name, what in COMMANDS.items()))
        elif name == "/system":
            self._system = argument.strip()
            self._note("system message set" if self._system else "no system message")
        elif name == "/clear":
            self._messages = []
            self._note("the conversation is forgotten")
        elif name in ("/stats", "/train", "/eval") and self._training is not None:
            self._look_after_drafts(self._training, name)
        else:
            self._fail(f"there is no command {name}; /help lists them, and // begins a message with a slash")

    def _look_after_drafts(self, training: ChatTraining, command: str) -> None:
        try:
            if command == "/stats":
                self._note(training.statistics())
            elif command == "/train":
                training.train()
            else:
                training.evaluate()
        except SpeculantError as error:
            self._fail(f"speculant: chat: {error}")

    def _ask(self, message: str) -> None:
        try:
            message.encode()
        except UnicodeEncodeError:  # Python decodes invalid bytes from a pipe to surrogates
            self._fail("speculant: chat: the line is not valid text; give UTF-8")
            return
        asked = [*self._messages, {"role": "user", "content": message}]
        answer, meter = Answer(self._answers, self._decoder.chat_format.parser()), RunMeter(self._decoder)
        reason, error, interruption = "", None, None
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
            error = failure
        # A partial answer stays in the conversation. A message is removed if it got no answer or if decoding failed.
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
        """Show a note."""
        write(self._notes, f"{text}\n")

    def _fail(self, text: str) -> None:
        self._note(text)
        self._has_failed = True


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
        output=create_output(sys.stderr),  # only answers go to standard output
    )
    # A terminal without cursor reports suffices for a one-line prompt, so the warning is suppressed.
    session.app.renderer.cpr_not_supported_callback = None
    return session
