"""Encodes untrusted text so that it yields no control tokens; only the chat template can write control tokens."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from speculant_graph.corpus.tokenize import encode_texts
from speculant_graph.types import TokenId

_LEAST_END = 2
"""A text is marked if it starts with the end of a control token, and this end has at least this number of characters.
Without a mark, a template might complete the control token."""


class PlainText:
    """Encodes untrusted texts, alone or within a template's text. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str = "") -> None:
        """Find the control tokens of a tokenizer.

        Args:
            tokenizer: the tokenizer.
            template: template text; added tokens that occur in this text count as control tokens, too.
        """
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        added = [
            each
            for each in self._backend.get_added_tokens_decoder().values()
            if len(each.content) > 1 and (each.special or (each.content in template and not each.content.isspace()))
        ]
        self._names = sorted((each.content for each in added), key=len, reverse=True)
        self._control = _Breaker(self._names)
        self._special = _Breaker([each.content for each in added if each.special])
        self._lock = Lock()
        nonce = f"{secrets.randbelow(1 << 62):019}"
        self._mark = f"@{nonce}@"
        self._renamed = {name: f"@{nonce}.{index}@" for index, name in enumerate(self._names)}

    def encode(self, texts: Sequence[str]) -> list[list[TokenId]]:
        """Return the token ids of texts; none of the ids is a control token.

        This requires a tokenizer whose ordinary vocabulary can't spell control tokens, such as a byte-level tokenizer.
        """
        encoded = _encoded(self._backend, texts)
        for index, text in enumerate(texts):
            if self._control.found.search(text):
                encoded[index] = self._ordinary(text)
        return encoded

    def broken(self, value: Any, *, is_own: bool = False) -> Any:
        """Return a value with marks in its texts: in control tokens, and at text ends that may be part of one.

        Args:
            value: texts in nested lists and objects; field names are marked, too.
            is_own: whether the model wrote the value; if so, non-special tokens, such as thinking tags, are not marked.
        """
        if isinstance(value, str):
            return (self._special if is_own else self._control).broken(value, self._mark)
        if isinstance(value, Mapping):
            return {self.broken(name, is_own=is_own): self.broken(each, is_own=is_own) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.broken(each, is_own=is_own) for each in value]
        return value

    def encode_broken(self, text: str) -> list[TokenId]:
        """Return the token ids of a template's text; tokens marked by :meth:`broken` stay text."""
        if self._mark not in text:
            return _encoded(self._backend, [text])[0]
        own = self._control.found.sub(lambda found: self._renamed[found[0]], text)
        return self._without_control(own.replace(self._mark, ""))

    def whole(self, text: str) -> str:
        """Remove the marks of :meth:`broken` from a text."""
        return text.replace(self._mark, "")

    def _ordinary(self, text: str) -> list[TokenId]:
        """Return the token ids of a text; run all steps of the tokenizer except the search for added tokens."""
        normalizer, pre_tokenizer = self._backend.normalizer, self._backend.pre_tokenizer
        text = text if normalizer is None else normalizer.normalize_str(text)
        pieces = [text] if pre_tokenizer is None else [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]
        model = self._backend.model
        return [token.id for piece in pieces for token in model.tokenize(piece)]

    def _without_control(self, text: str) -> list[TokenId]:
        with self._lock:  # so that the copy is made once
            copy, ids = self._copy
        return [ids.get(token, token) for token in _encoded(copy, [text])[0]]

    @cached_property
    def _copy(self) -> tuple[Tokenizer, dict[TokenId, TokenId]]:
        """Return a copy of the tokenizer with renamed control tokens, and a map from the copy's ids to real ids."""
        definition = json.loads(self._backend.to_str())
        model = definition["model"]
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            model["vocab"] = {self._renamed.get(name, name): token for name, token in vocabulary.items()}
        elif isinstance(vocabulary, list):
            model["vocab"] = [[self._renamed.get(name, name), score] for name, score in vocabulary]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = self._renamed.get(model["unk_token"], model["unk_token"])
        ids = {}
        for each in definition["added_tokens"]:
            each["content"] = self._renamed.get(each["content"], each["content"])
            ids[each["content"]] = each["id"]
        copy = Tokenizer.from_str(json.dumps(definition, ensure_ascii=False))
        copy.no_truncation()
        copy.no_padding()
        return copy, {found: token for name, token in ids.items() if (found := copy.token_to_id(name)) is not None}


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[TokenId]]:
    """Return the token ids of texts.

    Raises:
        UnicodeEncodeError: a text has a lone surrogate.
    """
    for text in texts:
        text.encode()
    return encode_texts(tokenizer, texts)


class _Breaker:
    """Breaks up tokens in texts by inserting a mark into each."""

    def __init__(self, names: Sequence[str]) -> None:
        one_of = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
        self.found = re.compile(one_of)
        self._starts = re.compile(f"(?=(?:{one_of}))(.)", re.DOTALL)
        self._beginnings = tuple({name[:size] for name in names for size in range(1, len(name))})
        self._ends = tuple({name[size:] for name in names for size in range(1, len(name) - _LEAST_END + 1)})

    def broken(self, text: str, mark: str) -> str:
        """Return a text with a mark in each token, and at text ends that could form a token with adjacent text."""
        before = mark if text.startswith(self._ends) else ""
        after = mark if text.endswith(self._beginnings) else ""
        return f"{before}{self._starts.sub(lambda found: found[1] + mark, text)}{after}"
