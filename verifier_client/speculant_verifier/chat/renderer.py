"""How a conversation looks: answers on standard output, everything else on standard error."""

from __future__ import annotations

from rich.console import Console

from speculant_graph.cli.terminal import printable
from speculant_verifier.chat.backend import Delta
from speculant_verifier.console import ACCEPTED_STYLE, DIM_STYLE, write
from speculant_verifier.generate.output import ended
from speculant_verifier.run_statistics import RunStatistics


class Renderer:
    """Shows answers as they come. Thoughts, and what was drafted, are shown on a terminal."""

    def __init__(self, answers: Console, notes: Console) -> None:
        """Take both consoles."""
        self._answers, self._notes = answers, notes
        self._is_reasoning = self._has_content = self._is_line_open = False

    def show(self, delta: Delta) -> None:
        """Show reasoning dimmed, then the answer, with accepted drafts in their colour."""
        if delta.reasoning and self._answers.is_terminal:
            if not self._is_reasoning and not self._answers.color_system:
                self._write("(thinking) ", "")
            self._is_reasoning = True
            self._write(delta.reasoning, DIM_STYLE)
        if delta.content:
            if self._is_reasoning:
                self._is_reasoning = False
                self._write("\n\n", "")
            self._has_content = True
            self._write(delta.content, ACCEPTED_STYLE if delta.is_accepted else "")
        self._answers.file.flush()

    def end(self, reason: str, error: str, statistics: RunStatistics) -> None:
        """End the answer's line; show below why it ended, and how it came about.

        Args:
            reason: 'stop', 'length', 'interrupted' or 'error'.
            error: what went wrong, if anything did.
            statistics: of the answer.
        """
        if self._is_line_open or (self._has_content and not self._answers.is_terminal):
            self._answers.file.write("\n")
            self._answers.file.flush()
        self._is_reasoning = self._has_content = self._is_line_open = False
        if error:
            self.note(f"speculant: chat: {error}")
            return
        line = statistics.line() if statistics.tokens else f"{statistics.elapsed_s:.1f} s"
        why = "" if reason == "stop" else f", {ended(reason)}"
        self._notes.print(printable(line + why), style=DIM_STYLE, markup=False)

    def note(self, text: str) -> None:
        """Show something that is no answer."""
        write(self._notes, f"{text}\n")
        self._notes.file.flush()

    def _write(self, text: str, style: str) -> None:
        write(self._answers, text, style)
        self._is_line_open = not text.endswith("\n")
