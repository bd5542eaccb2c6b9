"""The identity of the tokenizer in a GGUF file, the format of llama.cpp's models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.corpus.tokenize import fingerprint_from
from speculant_graph.errors import ConfigError
from speculant_graph.extras import needed_for
from speculant_graph.types import Fingerprint

if TYPE_CHECKING:
    from gguf import GGUFReader

_CONTROL, _UNUSED = 3, 5
"""Of llama.cpp's types of tokens: special ones, and ids that stand for none."""


def gguf_fingerprint(path: str | Path) -> Fingerprint:
    """Return the identity of the tokenizer in a GGUF file, as that of the tokenizer it was made from.

    Args:
        path: the file.

    Raises:
        ConfigError: it can't be read, or has no tokenizer of byte pairs.
        ModuleNotFoundError: the extra ``llama-cpp`` is not installed.
    """
    with needed_for("reading GGUF files", "llama-cpp"):
        from gguf import GGUFReader
    try:
        reader = GGUFReader(path)
    except Exception as error:  # of damaged files the library raises anything
        raise ConfigError(f"{path} can't be read as GGUF ({error}); name the model's file") from error
    tokens, types, merges = (_field(reader, name) for name in ("tokens", "token_type", "merges"))
    if not tokens or not merges or len(types) != len(tokens):
        raise ConfigError(f"{path} has no tokenizer of byte pairs; name its folder as tokenizer")
    return fingerprint_from(
        str(path),
        {token: token_id for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED},
        [merge.split(" ", 1) for merge in merges],
        [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL],
    )


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return [] if field is None else field.contents()
