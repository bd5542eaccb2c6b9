"""Who answers in a conversation: what the loop must know of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from speculant_verifier.run_statistics import RunStatistics

if TYPE_CHECKING:
    from speculant_verifier.draft_model.adapters import Adapters

Messages = Sequence[dict[str, str]]
"""Each with 'role' and 'content', from the first to the latest."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What an answer grew by."""

    reasoning: str
    """Text of channels that are not the answer."""
    content: str
    """Text of the answer."""


class Partner(Protocol):
    """Answers conversations, one at a time."""

    name: str
    """Of the model, for people."""

    def answer(self, messages: Messages, attempt: int) -> Generator[Piece, None, None]:
        """Yield an answer as it comes; closing the generator ends it.

        Args:
            messages: the conversation.
            attempt: 0, or how often this answer was asked for again: others have other random numbers.

        Raises:
            SpeculantError: there is none, or it broke off.
        """

    @property
    def adapters(self) -> Adapters | None:
        """The adapters of a draft model in this process, if there is one."""

    @property
    def finish_reason(self) -> str:
        """Why the latest answer ended; empty if it did not."""

    @property
    def statistics(self) -> RunStatistics:
        """How the latest answer came about, also one that was left."""

    def close(self) -> None:
        """Free what it holds."""
