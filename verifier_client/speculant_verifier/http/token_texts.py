"""Texts, bytes and log-probabilities of single tokens, in the format of the API's answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import decoders
from transformers.convert_slow_tokenizer import bytes_to_unicode

from speculant_graph.types import TokenId
from speculant_verifier.model import TargetModel
from speculant_verifier.results import TokenLogprobs

Fields = dict[str, Any]
"""A JSON object."""
_LEAST = -9999.0
"""Log-probability that stands for minus infinity, which JSON can't represent."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "\u2581"  # SentencePiece


class TokenTexts:
    """Provides the texts and bytes of single tokens; a token may be only part of a character."""

    def __init__(self, target: TargetModel) -> None:
        """Read the vocabulary of the model's tokenizer."""
        backend = target.tokenizer.backend_tokenizer
        self._piece_of = backend.id_to_token
        self._whole = {token_id: added.content for token_id, added in backend.get_added_tokens_decoder().items()}
        is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._alphabet = {sign: byte for byte, sign in bytes_to_unicode().items()} if is_byte_level else None
        self._known: dict[TokenId, tuple[str, list[int]]] = {}

    def bytes_of(self, token: TokenId) -> bytes:
        """Return the bytes of a token."""
        whole = self._whole.get(token)
        if whole is not None:
            return whole.encode()
        piece = self._piece_of(token) or ""
        if self._alphabet is not None and self._alphabet.keys() >= set(piece):
            return bytes(self._alphabet[character] for character in piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes.fromhex(byte[1]) if byte else piece.replace(_WORD_START, " ").encode()

    def text_of(self, token: TokenId) -> str:
        """Return the text of a token, or its escaped bytes if they are not UTF-8."""
        content = self.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def entries(self, tokens: Sequence[TokenLogprobs]) -> list[Fields]:
        """Return the log-probability entries of tokens, in the format of the API's answers."""
        return [
            self._entry(at.token_id, at.logprob)
            | {"top_logprobs": [self._entry(*top) for top in zip(at.top_token_ids, at.top_logprobs, strict=True)]}
            for at in tokens
        ]

    def is_added(self, token: TokenId) -> bool:
        """Tell whether a token was added to the vocabulary, such as a control token."""
        return token in self._whole

    def _entry(self, token: TokenId, logprob: float) -> Fields:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self.text_of(token), list(self.bytes_of(token))
        return {"token": known[0], "logprob": max(_LEAST, logprob), "bytes": known[1]}
