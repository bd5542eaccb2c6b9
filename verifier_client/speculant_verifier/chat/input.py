"""Lines that a user types, with editing and history, or lines of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from speculant_graph.errors import ConfigError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession


class Input:
    """Where messages come from: a prompt on a terminal, whose history is not kept on disk, or standard input."""

    def __init__(self, commands: Sequence[str], *, is_colored: bool) -> None:
        """Set up the prompt, if the input is a terminal.

        Args:
            commands: completed by Tab.
            is_colored: whether the prompt may be.
        """
        self.is_typed = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        self._session = _session(commands, is_colored=is_colored) if self.is_typed else None

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


def _session(commands: Sequence[str], *, is_colored: bool) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.output import ColorDepth, create_output

    session: PromptSession[str] = PromptSession(
        FormattedText([("bold", "> ")]) if is_colored else "> ",
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        color_depth=None if is_colored else ColorDepth.MONOCHROME,
        output=create_output(sys.stderr),  # answers alone go to standard output
    )
    # A terminal that does not report its cursor serves a prompt of a line as well: no warning about that.
    session.app.renderer.cpr_not_supported_callback = None
    return session
