"""Tokenizers with harmony's control tokens: the released one, and a small one for machines without it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from support.tiny_models import byte_tokenizer

HARMONY_NAMES = [
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"
]  # fmt: skip
HARMONY_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}<|message|>{{ message['content'] }}<|end|>{% endfor %}"
    "<|start|>assistant"
)


def harmony_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return the byte tokenizer or gpt-oss's tokenizer; skips the test if gpt-oss's is not installed."""
    if kind == "bytes":
        tokenizer = byte_tokenizer()
        names = [AddedToken(name, special=True) for name in HARMONY_NAMES]
        tokenizer.add_special_tokens({"additional_special_tokens": names})
        tokenizer.chat_template = HARMONY_TEMPLATE
        return tokenizer
    folder = Path(os.environ.get("SPECULANT_DATA", "")) / "gpt-oss-tokenizer"
    if "SPECULANT_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("SPECULANT_DATA names no folder with the released tokenizer")
    return PreTrainedTokenizerFast.from_pretrained(folder)


@cache
def official_harmony() -> tuple[PreTrainedTokenizerFast, Any, Any]:
    """Return the released tokenizer, OpenAI's library, and the library's encoding, read from the same folder."""
    tokenizer = harmony_tokenizer("gpt-oss")
    library = pytest.importorskip("openai_harmony")
    folder = str(Path(os.environ["SPECULANT_DATA"]) / "gpt-oss-tokenizer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", folder)
        return tokenizer, library, library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)
