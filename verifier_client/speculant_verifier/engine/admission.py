"""Which requests may join: those that fit into the model, the batch and the memory for keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph.config import VerifierConfig
from speculant_graph.errors import GenerationError
from speculant_verifier.engine.sequence import ActiveSequence, Request
from speculant_verifier.model import TargetModel


class Admission:
    """Keeps the rows of a batch, all as long as the longest of them may get, below the bound."""

    def __init__(self, target: TargetModel, config: VerifierConfig, most_nodes: int) -> None:
        """Take the bounds.

        Args:
            target: the model, whose longest context bounds every row.
            config: rows and tokens.
            most_nodes: nodes of a draft, which need slots while they are verified.
        """
        self._target, self._most_nodes = target, most_nodes
        self._num_rows = config.max_batch_size
        self._max_tokens = config.max_kv_tokens or config.max_batch_size * (target.max_length + most_nodes)

    def check(self, request: Request) -> None:
        """Refuse a request that could never run.

        Raises:
            GenerationError: it is empty or too long, or holds ids that the model does not have.
        """
        name, length, longest = self._target.name, len(request.prompt), self._target.max_length
        if not length:
            raise GenerationError("the prompt is empty; give at least one token")
        if length >= longest:
            raise GenerationError(
                f"the prompt has {length} tokens, but '{name}' takes at most {longest - 1}; shorten it"
            )
        if not all(0 <= token < self._target.vocabulary_size for token in request.prompt):
            raise GenerationError(
                f"the prompt holds token ids outside 0..{self._target.vocabulary_size - 1}; "
                "use the model's own tokenizer"
            )
        if self._need(request) > self._max_tokens:
            raise GenerationError(
                f"prompt and output may take {self._need(request)} tokens, but there is memory for {self._max_tokens}; "
                "lower max_tokens, or raise --verifier.max-kv-tokens"
            )

    def has_room(self, sequence: ActiveSequence, running: Sequence[ActiveSequence]) -> bool:
        """Whether a sequence can join those that run."""
        if len(running) >= self._num_rows:
            return False
        longest = max(self._need(each.request) for each in (sequence, *running))
        return (len(running) + 1) * longest <= self._max_tokens

    def _need(self, request: Request) -> int:
        return min(len(request.prompt) + request.config.max_tokens, self._target.max_length) + self._most_nodes
