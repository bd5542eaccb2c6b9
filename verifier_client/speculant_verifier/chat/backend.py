"""What answers in a conversation: the interface of the loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from speculant_verifier.run_statistics import RunStatistics

Messages = Sequence[dict[str, str]]
"""Each with 'role' and 'content', from the first to the latest."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What an answer grew by."""

    content: str = ""
    """Text of the answer."""
    reasoning: str = ""
    """Text of channels that are not the answer."""
    is_accepted: bool | None = None
    """Whether it was accepted from a draft; None where that is not known."""


class Backend(Protocol):
    """Answers conversations, one at a time."""

    name: str
    """Of the model, for people."""
    finish_reason: str
    """Why the latest answer ended; empty if it did not."""

    def answer(self, messages: Messages, attempt: int) -> Generator[Delta, None, None]:
        """Yield an answer as it comes; closing the generator ends it.

        Args:
            messages: the conversation.
            attempt: 0, or how often this answer was asked for again: others have other random numbers.

        Raises:
            SpeculantError: there is none, or it broke off.
        """

    @property
    def statistics(self) -> RunStatistics:
        """How the latest answer came about, also one that was left."""

    def close(self) -> None:
        """Free what it holds."""
