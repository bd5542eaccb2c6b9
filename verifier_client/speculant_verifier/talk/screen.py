"""How a conversation looks: for people, or an object a line for machines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console

from speculant_graph.cli.terminal import printable
from speculant_verifier.console import DIM_STYLE, write
from speculant_verifier.generate_output import ended
from speculant_verifier.run_statistics import RunStatistics
from speculant_verifier.talk.partner import Piece


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer."""

    number: int
    """From 1."""
    message: str
    """What was asked."""
    content: str
    """What was answered."""
    reasoning: str
    """What was thought before."""
    finish_reason: str
    """Why the answer ended: 'stop', 'length', 'interrupted' or 'error'."""
    error: str
    """What went wrong, if anything did."""
    statistics: RunStatistics
    """How the answer came about."""


class Screen(Protocol):
    """Where answers and notes go."""

    def show(self, piece: Piece) -> None:
        """Show what an answer grew by."""

    def end(self, turn: Turn) -> None:
        """Show how a turn ended."""

    def note(self, text: str) -> None:
        """Tell something that is no answer."""


class TextScreen:
    """Answers on standard output, the rest on standard error; reasoning only where somebody looks."""

    def __init__(self, answers: Console, notes: Console) -> None:
        """Take both consoles."""
        self._answers, self._notes = answers, notes
        self._is_reasoning = False
        self._has_content = False
        self._is_line_open = False

    def show(self, piece: Piece) -> None:
        """Show reasoning dimmed, and then the answer."""
        if piece.reasoning and self._answers.is_terminal:
            if not self._is_reasoning and not self._answers.color_system:
                self._write("(thinking) ", "")
            self._is_reasoning = True
            self._write(piece.reasoning, DIM_STYLE)
        if piece.content:
            if self._is_reasoning:
                self._is_reasoning = False
                self._write("\n\n", "")
            self._has_content = True
            self._write(piece.content, "")
        self._answers.file.flush()

    def end(self, turn: Turn) -> None:
        """End the answer's line; show statistics below."""
        if self._is_line_open or (self._has_content and not self._answers.is_terminal):
            self._answers.file.write("\n")
            self._answers.file.flush()
        self._is_reasoning = self._has_content = self._is_line_open = False
        if turn.error:
            self.note(f"speculant: chat: {turn.error}")
            return
        line = turn.statistics.line() if turn.statistics.tokens else f"{turn.statistics.elapsed_s:.1f} s"
        why = "" if turn.finish_reason == "stop" else f", {ended(turn.finish_reason)}"
        self._notes.print(printable(line + why), style=DIM_STYLE, markup=False)

    def note(self, text: str) -> None:
        """Tell something on standard error."""
        write(self._notes, f"{text}\n")
        self._notes.file.flush()

    def _write(self, text: str, style: str) -> None:
        write(self._answers, text, style)
        self._is_line_open = not text.endswith("\n")


class JsonScreen:
    """One object a line for every turn on standard output; the rest on standard error."""

    def __init__(self, answers: Console, notes: Console) -> None:
        """Take both consoles."""
        self._answers, self._notes = answers, notes

    def show(self, piece: Piece) -> None:
        """Show nothing before the turn has ended."""

    def end(self, turn: Turn) -> None:
        """Print the turn."""
        report = {
            "turn": turn.number,
            "message": turn.message,
            "content": turn.content,
            "reasoning": turn.reasoning,
            "finish_reason": turn.finish_reason,
            "error": turn.error or None,
            "statistics": turn.statistics.as_json(),
        }
        self._answers.file.write(json.dumps(report) + "\n")
        self._answers.file.flush()

    def note(self, text: str) -> None:
        """Tell something on standard error."""
        write(self._notes, f"{text}\n")
        self._notes.file.flush()
