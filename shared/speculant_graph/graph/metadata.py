"""What a graph file says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from speculant_graph.types import Fingerprint

FORMAT_VERSION = 1
"""Version of the graph file that this release writes and reads."""


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file that was counted."""

    name: str
    """Its path as it was given."""
    size_bytes: int
    """Its size."""
    sha256: str
    """Hex digest of its bytes."""


@dataclass(frozen=True, slots=True)
class GraphMetadata:
    """Where a graph comes from and how large it is."""

    format_version: int
    """Version of the file format."""
    tokenizer: Fingerprint
    """Tokenizer of the corpus; the verifier must use the same."""
    max_order: int
    """Longest context N, in tokens."""
    num_tokens: int
    """Tokens counted, those that wrap documents included."""
    contexts_per_order: tuple[int, ...]
    """Distinct contexts with a successor, for orders 1 to N."""
    transitions_per_order: tuple[int, ...]
    """Distinct (context, next token) pairs, for orders 1 to N."""
    built_at: str
    """ISO 8601 time, UTC."""
    corpus_files: tuple[CorpusFile, ...]
    """Files of the corpus in the order they were read; empty if it was made from token ids."""
    library_version: str
    """Release of speculant-graph that built it."""
