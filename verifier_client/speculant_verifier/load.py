"""How much is under way over gRPC and HTTP together, and how much more is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from speculant_graph.config import ServiceConfig
from speculant_graph.errors import DrafterUnavailableError, DraftLimitError, GenerationRequestError

_RETRY_S = 1.0


class Load:
    """Counts the sequences that are decoded or wait, and refuses more than there is room for."""

    def __init__(self, config: ServiceConfig, max_batch_size: int) -> None:
        """Begin with nothing under way.

        Args:
            config: how many may wait.
            max_batch_size: sequences decoded together.
        """
        self._most = max_batch_size + config.max_waiting
        self._most_samples = min(config.max_samples, self._most)
        self.num_sequences = 0
        """Under way."""
        self.num_refused = 0
        """Requests refused for want of room."""
        self.is_draining = False
        """Whether no more are taken."""

    @contextmanager
    def admitted(self, num_sequences: int) -> Iterator[None]:
        """Hold room for the sequences of one request, whichever way it came in.

        Raises:
            SpeculantError: as ``require_room`` does.
        """
        self.require_room(num_sequences)
        self.num_sequences += num_sequences
        try:
            yield
        finally:
            self.num_sequences -= num_sequences

    def require_room(self, num_sequences: int) -> None:
        """Refuse a request of so many sequences, if it would not be taken now.

        Raises:
            GenerationRequestError: they are more than any request may have.
            DraftLimitError: there is no room; the same request may be taken a little later.
            DrafterUnavailableError: the service is about to end.
        """
        if self.is_draining:
            raise DrafterUnavailableError("the verifier is shutting down; ask another")
        if num_sequences > self._most_samples:
            raise GenerationRequestError(
                f"the request asks for {num_sequences} samples; ask for at most {self._most_samples}"
            )
        if self.num_sequences + num_sequences > self._most:
            self.num_refused += 1
            raise DraftLimitError(
                f"{self.num_sequences} sequences are under way; try again in {_RETRY_S:g} s", _RETRY_S
            )
