"""Finds the control tokens of harmony, the chat format of gpt-oss, in a tokenizer."""

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
    """Ids of harmony's control tokens in one tokenizer."""

    names: dict[TokenId, str]
    """Text of every control token, by its token id."""

    @classmethod
    def find(cls, tokenizer: PreTrainedTokenizerBase) -> Self | None:
        """Return the harmony control tokens of a tokenizer; None if the tokenizer lacks any of them."""
        added = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls({added[name]: name for name in _NAMES}) if added.keys() >= set(_NAMES) else None

    @property
    def ids(self) -> dict[str, TokenId]:
        """Ids by name."""
        return {name: token_id for token_id, name in self.names.items()}

    @property
    def stops(self) -> frozenset[TokenId]:
        """Tokens that end an answer: the return token, and the call token, because a tool call waits for its output."""
        return frozenset(self.ids[name] for name in (RETURN, CALL))
