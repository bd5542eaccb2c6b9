"""Numbers with nouns."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless there is exactly one: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
