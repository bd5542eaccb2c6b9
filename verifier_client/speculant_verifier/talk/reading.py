"""Lines that somebody types, with editing and history, or lines of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from speculant_graph.errors import ConfigError


class LineReader(Protocol):
    """Where messages come from."""

    is_typed: bool
    """Whether a person types them."""

    def read(self) -> str:
        """Return the next line without its end.

        Raises:
            EOFError: there is none.
            KeyboardInterrupt: Ctrl-C.
        """


class PipeReader:
    """Lines of standard input, which is no terminal."""

    is_typed = False

    def read(self) -> str:
        """Return the next line; see :class:`LineReader`.

        Raises:
            ConfigError: it is no text.
        """
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ConfigError(f"standard input is no text ({error.reason}); give UTF-8") from error
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")


class TerminalReader:
    """A prompt with line editing, and the history of this conversation: nothing is kept on disk."""

    is_typed = True

    def __init__(self, commands: Sequence[str], *, is_colored: bool) -> None:
        """Set up the prompt.

        Args:
            commands: completed by Tab.
            is_colored: whether the prompt may be.
        """
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.output import ColorDepth, create_output

        self._session: PromptSession[str] = PromptSession(
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            color_depth=None if is_colored else ColorDepth.MONOCHROME,
            output=create_output(sys.stderr),  # answers alone go to standard output
        )
        # A terminal that does not say where its cursor is serves a prompt of a line as well: no warning about that.
        self._session.app.renderer.cpr_not_supported_callback = None
        self._prompt = FormattedText([("bold", "> ")]) if is_colored else "> "

    def read(self) -> str:
        """Return what was typed; see :class:`LineReader`."""
        return self._session.prompt(self._prompt)


def make_reader(commands: Sequence[str], *, is_colored: bool) -> LineReader:
    """Return a reader of standard input."""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        return TerminalReader(commands, is_colored=is_colored)
    return PipeReader()
