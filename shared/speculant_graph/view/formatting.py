"""Words that several commands print for people."""

from __future__ import annotations

PHASE_LABELS = {
    "tokenize": "tokenising",
    "calibrate": "trying out",
    "count": "counting",
    "save": "linking",
    "combine": "combining",
}
"""What a phase of :class:`~speculant_graph.graph.build.builder.BuildProgress` is called, in at most 10 characters."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless there is exactly one: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
