"""What several commands print for people, and text from elsewhere on its way to a terminal and from one."""

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
"""What a phase of :class:`~speculant_graph.graph.build.builder.BuildProgress` is called, in at most 10 characters."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless there is exactly one: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def left_out_of(metadata: GraphMetadata) -> str:
    """Return how much of a graph's corpus was left out; empty if nothing was."""
    files = sum(not file.num_records for file in metadata.skipped)
    records = sum(file.num_records for file in metadata.skipped)
    numbers = [counted(number, noun) for number, noun in ((files, "file"), (records, "record")) if number]
    return f"{' and '.join(numbers)} left out" if numbers else ""


def printable(text: str) -> str:
    """Return a text in which characters that are no print, such as those that steer a terminal, are escapes.

    Names of files and the metadata of a graph may hold any character, and names bytes that are not UTF-8.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in displayed(text)
    )


def checked_prompt(prompt: str) -> str:
    """Return a prompt as it is.

    Raises:
        ConfigError: the bytes that were typed are no UTF-8.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("--prompt is not valid UTF-8; check the encoding of the terminal") from error
    return prompt
