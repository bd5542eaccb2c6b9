"""Files to one stream of token ids."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speculant_graph.corpus.loaders import read_chunks
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import CorpusError
from speculant_graph.types import TokenId

# The tokenizers library works on one piece per core, and small pieces keep all cores busy to the end of a
# batch.
_PIECE_CHARACTERS = 1 << 16


def tokenize_files(
    tokenizer: CorpusTokenizer,
    files: Sequence[Path],
    chunk_size: int,
    encoding: str,
    on_batch: Callable[[int, int], None] | None = None,
) -> NDArray[np.uint32]:
    """Return the token ids of all files, one after another, shape ``[num_tokens]``.

    Each file is wrapped in the tokenizer's BOS and EOS tokens, if it has them; empty files are left out.

    Args:
        tokenizer: makes the ids.
        files: what to read, in this order.
        chunk_size: characters tokenised at a time.
        encoding: text encoding of the files.
        on_batch: told the bytes of text and the number of tokens that are done; line ends count as one byte,
            so
            the bytes may stay below the size of the files.

    Raises:
        ConfigError: the encoding does not exist.
        CorpusError: a file can't be read, or all are empty.
    """
    token_ids = array("I")
    num_bytes = 0
    for batch in _batches(tokenizer, files, chunk_size, encoding):
        texts = [item for item in batch if isinstance(item, str)]
        encoded = iter(tokenizer.encode_batch(texts))
        for item in batch:
            if isinstance(item, str):
                token_ids.extend(next(encoded))
            else:
                token_ids.append(item)
        if on_batch is not None:
            num_bytes += sum(len(text.encode(encoding)) for text in texts)
            on_batch(num_bytes, len(token_ids))
    if not token_ids:
        raise CorpusError(f"none of {len(files)} files holds text; name files that do")
    return np.frombuffer(token_ids, dtype=np.uint32)


def _batches(
    tokenizer: CorpusTokenizer, files: Sequence[Path], chunk_size: int, encoding: str
) -> Iterator[list[str | TokenId]]:
    batch: list[str | TokenId] = []
    num_characters = 0
    for file in files:
        for item in _document(tokenizer, read_chunks(file, min(_PIECE_CHARACTERS, chunk_size), encoding)):
            batch.append(item)
            num_characters += len(item) if isinstance(item, str) else 0
            if num_characters >= chunk_size:
                yield batch
                batch, num_characters = [], 0
    yield batch


def _document(tokenizer: CorpusTokenizer, pieces: Iterator[str]) -> Iterator[str | TokenId]:
    first = next(pieces, None)
    if first is None:
        return
    if tokenizer.bos_id is not None:
        yield tokenizer.bos_id
    yield first
    yield from pieces
    if tokenizer.eos_id is not None:
        yield tokenizer.eos_id
