"""The first tokens of a corpus, without reading the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.documents import Source, read_documents
from speculant_graph.corpus.stream import items_of
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import CorpusError
from speculant_graph.graph.layout import UInt32Array

_PIECE_CHARACTERS = 1 << 16
_WHOLE = 1 << 62


def first_tokens(
    tokenizer: CorpusTokenizer, files: Sequence[Path], config: GraphConfig, num_tokens: int
) -> UInt32Array:
    """Return the first tokens of a corpus as one stream, shape ``[at most num_tokens]``.

    Args:
        tokenizer: makes the ids.
        files: the corpus.
        config: how its files are read; document boundaries are not marked.
        num_tokens: how many.

    Raises:
        CorpusError: a file can't be read, or there is no text.
    """
    pieces: list[UInt32Array] = []
    found = 0
    for piece in _pieces(tokenizer, files, config):
        pieces.append(piece)
        found += piece.size
        if found >= num_tokens:
            break
    if not found:
        raise CorpusError("the corpus holds no text; name files that do")
    return np.concatenate(pieces)[:num_tokens]


def _pieces(tokenizer: CorpusTokenizer, files: Sequence[Path], config: GraphConfig) -> Iterator[UInt32Array]:
    piece_characters = _PIECE_CHARACTERS if tokenizer.is_cuttable else _WHOLE
    for file in files:
        for document in read_documents(Source(file), config, tokenizer.fingerprint.vocabulary_size):
            for item in items_of(document, tokenizer, piece_characters):
                yield tokenizer.encode_array(item) if isinstance(item, str) else item
