"""Formats text that several commands print, escapes untrusted text, and checks prompts typed in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from speculant_graph.errors import ConfigError
from speculant_graph.file_names import displayed

if TYPE_CHECKING:
    from speculant_graph.graph.metadata import GraphMetadata

PHASE_LABELS = {
    "check": "checking",
    "tokenize": "tokenising",
    "train": "training",
    "calibrate": "trying out",
    "count": "counting",
    "save": "linking",
    "combine": "combining",
}
"""Labels of the phases of :class:`~speculant_graph.graph.build.builder.BuildProgress`, at most 10 characters each."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def left_out_of(metadata: GraphMetadata) -> str:
    """Return a text that says how much of a graph's corpus was skipped; empty if nothing was skipped."""
    files = sum(not file.num_records for file in metadata.skipped)
    records = sum(file.num_records for file in metadata.skipped)
    numbers = [counted(number, noun) for number, noun in ((files, "file"), (records, "record")) if number]
    return f"{' and '.join(numbers)} left out" if numbers else ""


def printable(text: str) -> str:
    """Return a text in which escapes replace unprintable characters, such as terminal controls.

    File names and a graph's metadata may contain any character. File names may even contain bytes that are not UTF-8.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in displayed(text)
    )


def checked_prompt(prompt: str) -> str:
    """Return a prompt unchanged if it is valid UTF-8.

    Raises:
        ConfigError: the typed bytes are not UTF-8.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("--prompt is not valid UTF-8; check the encoding of the terminal") from error
    return prompt
