"""Log-probabilities as OpenAI's clients expect them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import decoders
from transformers.convert_slow_tokenizer import bytes_to_unicode

from speculant_graph.types import TokenId
from speculant_verifier.detokenizer import Detokenizer
from speculant_verifier.model import TargetModel
from speculant_verifier.results import TokenLogprobs

_LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "\u2581"  # of SentencePiece


class TokenTexts:
    """Single tokens as bytes: one token may be a part of a character only."""

    def __init__(self, target: TargetModel) -> None:
        """Look at the model's tokenizer."""
        backend = target.tokenizer.backend_tokenizer
        self._piece_of = backend.id_to_token
        self._whole = {token_id: added.content for token_id, added in backend.get_added_tokens_decoder().items()}
        is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._alphabet = {sign: byte for byte, sign in bytes_to_unicode().items()} if is_byte_level else None
        self._known: dict[TokenId, tuple[str, list[int]]] = {}

    def bytes_of(self, token: TokenId) -> bytes:
        """Return the bytes that a token stands for."""
        whole = self._whole.get(token)
        if whole is not None:
            return whole.encode()
        piece = self._piece_of(token) or ""
        if self._alphabet is not None and self._alphabet.keys() >= set(piece):
            return bytes(self._alphabet[character] for character in piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes.fromhex(byte[1]) if byte else piece.replace(_WORD_START, " ").encode()

    def text_of(self, token: TokenId) -> str:
        """Return its text, or its bytes spelt out where they are no text."""
        content = self.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def chat(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the object of chats."""
        return {
            "content": [
                self._entry(at.token_id, at.logprob)
                | {"top_logprobs": [self._entry(*top) for top in zip(at.top_token_ids, at.top_logprobs, strict=True)]}
                for at in tokens
            ]
        }

    def completion(self, tokens: Sequence[TokenLogprobs], offsets: Offsets) -> dict[str, Any]:
        """Return the object of completions.

        Args:
            tokens: emitted ones.
            offsets: of the choice, already given all tokens before these.
        """
        return {
            "tokens": [self.text_of(at.token_id) for at in tokens],
            "token_logprobs": [max(_LEAST, at.logprob) for at in tokens],
            "top_logprobs": [self._top(at) for at in tokens],
            "text_offset": [offsets.next(at.token_id) for at in tokens],
        }

    def _top(self, at: TokenLogprobs) -> dict[str, float]:
        """Return the most probable tokens and the emitted one; of two with the same text the more probable."""
        own = [] if at.token_id in at.top_token_ids else [(at.token_id, at.logprob)]
        top = [*zip(at.top_token_ids, at.top_logprobs, strict=True), *own]
        return {self.text_of(token): max(_LEAST, logprob) for token, logprob in reversed(top)}

    def _entry(self, token: TokenId, logprob: float) -> dict[str, Any]:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self.text_of(token), list(self.bytes_of(token))
        return {"token": known[0], "logprob": max(_LEAST, logprob), "bytes": known[1]}


class Offsets:
    """Where tokens begin in the text that they make up."""

    def __init__(self, target: TargetModel) -> None:
        """Start before the first token."""
        self._stream = Detokenizer(target.decode)
        self._length = 0

    def next(self, token: TokenId) -> int:
        """Return where the next token begins: within a character, where that begins."""
        offset = self._length
        self._length += len(self._stream.push([token]))
        return offset
