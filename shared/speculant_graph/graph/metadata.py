"""What a graph file states about itself."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated

from pydantic import Base64Bytes, BeforeValidator, Field

from speculant_graph.corpus.files import CorpusFile
from speculant_graph.types import Fingerprint, SpecialTokensName, TokenId

FORMAT_VERSION = 3
"""Version of the graph file that this release writes and reads."""
MAX_CALIBRATION_BYTES = 1 << 20
"""Largest calibration that a graph file holds."""

_Number = Annotated[int, Field(ge=0)]


def _strict_base64(value: object) -> object:
    """Refuse text in which anything stands that is no base64, which pydantic passes over."""
    if not isinstance(value, str):
        return value
    base64.b64decode(value, validate=True)
    return value.encode()


@dataclass(frozen=True, slots=True)
class GraphMetadata:
    """Where a graph comes from and how large it is."""

    format_version: int
    """Version of the file format."""
    tokenizer: Fingerprint
    """Tokenizer of the corpus; the verifier must use the same."""
    tokenizer_revision: str
    """Commit of the tokenizer on the hub; empty if it came from a folder."""
    max_order: Annotated[int, Field(ge=1, le=10)]
    """Longest context N, in tokens."""
    num_tokens: Annotated[int, Field(ge=1)]
    """Tokens counted, those that wrap documents included."""
    num_documents: Annotated[int, Field(ge=0)]
    """Documents counted: files, or records of JSON files."""
    document_boundaries: bool
    """True if no n-gram crosses from one document into the next."""
    min_count: Annotated[int, Field(ge=1)]
    """N-grams with lower counts were pruned; 1 if none were."""
    nodes_per_level: tuple[_Number, ...]
    """Distinct n-grams of 1 to N+1 tokens."""
    contexts_per_order: tuple[_Number, ...]
    """Distinct contexts with a successor, for orders 1 to N."""
    head_token_ids: tuple[TokenId, ...]
    """The first N tokens, which a graph that is put before this one continues into."""
    tail_token_ids: tuple[TokenId, ...]
    """The last N tokens, which a graph that is put behind this one continues."""
    built_at: str
    """ISO 8601 time, UTC."""
    build_seconds: float
    """How long that took."""
    corpus_files: tuple[CorpusFile, ...]
    """Files of the corpus in the order they were read; empty if it was made from token ids."""
    library_version: str
    """Release of speculant-graph that built it."""
    calibration: Annotated[Base64Bytes, BeforeValidator(_strict_base64), Field(max_length=MAX_CALIBRATION_BYTES)] = b""
    """How reliable the contexts are, learned from the corpus, for drafters; empty if that was not done."""
    special_tokens: SpecialTokensName = "text"
    """What special tokens were where texts spelt them out: ordinary text, or parsed to these tokens."""

    @property
    def transitions_per_order(self) -> tuple[int, ...]:
        """Distinct (context, next token) pairs, for orders 1 to N."""
        return self.nodes_per_level[1:]
