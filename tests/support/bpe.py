"""Byte-level BPE tokenizers, trained in a moment, near those of published models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PATTERN = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Near what published tokenizers split by, so that pre-tokens overlap in the same ways."""


def trained(
    pre_tokenizer: Any,
    text: str,
    *,
    vocabulary_size: int,
    ignore_merges: bool = False,
    special: Sequence[str | AddedToken] = (),
) -> Tokenizer:
    """Train a tokenizer on a text; its special tokens come on top of the vocabulary."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def split_by(pattern: str) -> Any:
    """Return a pre-tokenizer that splits by a pattern."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level() -> Any:
    """Return the pre-tokenizer that splits as GPT-2's does."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
