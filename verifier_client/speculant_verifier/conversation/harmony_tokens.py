"""The control tokens of harmony, gpt-oss's format, found in a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from transformers import PreTrainedTokenizerBase

from speculant_graph.types import TokenId

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
RETURN, CALL, CONSTRAIN = "<|return|>", "<|call|>", "<|constrain|>"
_NAMES = (START, CHANNEL, MESSAGE, END, RETURN, CALL, CONSTRAIN)


@dataclass(frozen=True, slots=True)
class HarmonyTokens:
    """Ids of the control tokens."""

    names: dict[TokenId, str]
    """Spellings of all control tokens."""

    @classmethod
    def find(cls, tokenizer: PreTrainedTokenizerBase) -> Self | None:
        """Return the control tokens of a tokenizer; None if it lacks any."""
        added = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls({added[name]: name for name in _NAMES}) if added.keys() >= set(_NAMES) else None

    @property
    def ids(self) -> dict[str, TokenId]:
        """Ids by name."""
        return {name: token_id for token_id, name in self.names.items()}

    @property
    def stops(self) -> frozenset[TokenId]:
        """Tokens that end an answer: the return token, and the call token, because a call waits for its output."""
        return frozenset(self.ids[name] for name in (RETURN, CALL))
