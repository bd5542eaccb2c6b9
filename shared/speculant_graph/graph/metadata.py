"""The metadata of a graph file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Base64Bytes, Field, TypeAdapter

from speculant_graph.corpus.source import CorpusFile, SkippedFile
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.layout import MAX_NODES, MAX_VOCABULARY
from speculant_graph.types import Fingerprint, SpecialTokensName, TokenId

FORMAT_VERSION = 4
"""Version of the graph files that this release writes. This release also reads the previous version, which has no
neural models."""
MAX_CALIBRATION_BYTES = 1 << 20
"""Maximum size of the calibration in a graph file, in bytes."""

_Number = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class GraphMetadata:
    """Origin and size of a graph."""

    format_version: int
    """Version of the graph file's format."""
    tokenizer: Fingerprint
    """Tokenizer of the corpus; the verifier must use the same tokenizer."""
    tokenizer_revision: str
    """Commit of the tokenizer on the hub; empty if the tokenizer came from a folder."""
    max_order: Annotated[int, Field(ge=1, le=10)]
    """Longest context N, in tokens."""
    num_tokens: Annotated[int, Field(ge=1)]
    """Number of counted tokens, including the BOS and EOS tokens that wrap documents."""
    num_documents: Annotated[int, Field(ge=0)]
    """Number of counted documents: files, or records of JSON files."""
    document_boundaries: bool
    """True if no n-gram crosses from one document into the next."""
    min_count: Annotated[int, Field(ge=1)]
    """N-grams with counts below this number were pruned; the number is 1 if none were pruned."""
    nodes_per_level: tuple[_Number, ...]
    """Number of distinct n-grams of each length, 1 to N+1 tokens."""
    contexts_per_order: tuple[_Number, ...]
    """Number of distinct contexts with a successor, for each order from 1 to N."""
    head_token_ids: tuple[TokenId, ...]
    """First N tokens of the corpus; a merge needs them for n-grams across the boundary if another graph comes first."""
    tail_token_ids: tuple[TokenId, ...]
    """Last N tokens of the corpus; a merge needs them for n-grams across the boundary if another graph follows."""
    built_at: str
    """Time of the build, ISO 8601, UTC."""
    build_seconds: float
    """Duration of the build in seconds."""
    corpus_files: tuple[CorpusFile, ...]
    """Files of the corpus in the order they were read; empty if the graph was made from token ids."""
    library_version: str
    """Release of speculant-graph that built the graph."""
    calibration: Annotated[Base64Bytes, Field(max_length=MAX_CALIBRATION_BYTES)] = b""
    """Calibration for drafters, learned from the corpus; empty if there is none."""
    special_tokens: SpecialTokensName = "text"
    """Whether special tokens that texts spell out were read as ordinary text or parsed."""
    skipped: tuple[SkippedFile, ...] = ()
    """Corpus files that were skipped because they could not be read, and corpus files in which records were skipped."""
    num_model_words: _Number = 0
    """Number of 32-bit words of the neural model; 0 if there is none."""

    @property
    def transitions_per_order(self) -> tuple[int, ...]:
        """Number of distinct (context, next token) pairs, for each order from 1 to N."""
        return self.nodes_per_level[1:]

    def summary(self, file_bytes: int) -> dict[str, Any]:
        """Return a graph's sizes and origin, for the JSON output of commands.

        Args:
            file_bytes: size of the graph's file in bytes.
        """
        nodes = sum(self.nodes_per_level)
        return {
            "file_bytes": file_bytes,
            "files": len(self.corpus_files),
            "skipped_files": sum(not file.num_records for file in self.skipped),
            "skipped_records": sum(file.num_records for file in self.skipped),
            "skipped": [file._asdict() for file in self.skipped],
            "text_bytes": sum(file.size_bytes for file in self.corpus_files),
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            "max_order": self.max_order,
            "nodes": nodes,
            "nodes_per_level": list(self.nodes_per_level),
            "contexts_per_order": list(self.contexts_per_order),
            "bytes_per_node": round(file_bytes / max(1, nodes), 2),
            "bytes_per_token": round(file_bytes / self.num_tokens, 2),
            "calibration_bytes": len(self.calibration),
            "neural_model_bytes": 4 * self.num_model_words,
            "tokenizer": self.tokenizer.name,
            "tokenizer_revision": self.tokenizer_revision,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocabulary_size": self.tokenizer.vocabulary_size,
            "document_boundaries": self.document_boundaries,
            "special_tokens": self.special_tokens,
            "min_count": self.min_count,
            "built_at": self.built_at,
            "build_seconds": self.build_seconds,
            "library_version": self.library_version,
        }


_METADATA = TypeAdapter(GraphMetadata)


def description_of(metadata: GraphMetadata, checksums: Sequence[str] = ()) -> bytes:
    """Return a graph file's description, as JSON padded with spaces.

    Args:
        metadata: the metadata; the size of the result does not depend on the numbers that are known only at the end of
            a build.
        checksums: checksums of the arrays, if known.

    Raises:
        GraphFileError: the calibration is larger than readers accept.
    """
    if len(metadata.calibration) > MAX_CALIBRATION_BYTES:
        raise GraphFileError(
            f"the calibration has {len(metadata.calibration)} bytes and a graph file holds {MAX_CALIBRATION_BYTES}; "
            "make it smaller or build without it"
        )
    packed = _METADATA.dump_python(metadata, mode="json") | {"format_version": FORMAT_VERSION}
    no_checksums = ["0" * 64] * (len(metadata.nodes_per_level) + 1 + (metadata.num_model_words > 0))
    widest = {
        "contexts_per_order": [MAX_NODES] * metadata.max_order,
        "build_seconds": 1e9,
        "array_sha256": no_checksums,
    }
    size = len(json.dumps(packed | widest))
    return json.dumps(packed | {"array_sha256": checksums or no_checksums}).encode("ascii").ljust(size)


def read_description(name: str | Path, text: bytes) -> tuple[GraphMetadata, list[str]]:
    """Return the metadata in a description, and the expected checksums of the arrays.

    Args:
        name: the file with the description, for messages.
        text: the description.

    Raises:
        GraphFileError: the description is from a release whose files this release can't read.
        Exception: the text is not a description.
    """
    packed = json.loads(text.decode("ascii"))
    version, checksums = packed["format_version"], packed["array_sha256"]
    if type(version) is int and version not in (FORMAT_VERSION - 1, FORMAT_VERSION):
        raise GraphFileError(
            f"{name} has file format {version} but this release reads {FORMAT_VERSION - 1} and {FORMAT_VERSION}; "
            "update speculant-graph or build the graph again"
        )
    if not all(isinstance(checksum, str) for checksum in checksums):
        raise ValueError("checksums")
    metadata = _METADATA.validate_json(text, strict=True)
    order, vocabulary_size = metadata.max_order, metadata.tokenizer.vocabulary_size
    if len(metadata.nodes_per_level) != order + 1 or len(metadata.contexts_per_order) != order:
        raise ValueError("number of levels")
    if len(metadata.head_token_ids) != len(metadata.tail_token_ids) or len(metadata.head_token_ids) > order:
        raise ValueError("number of boundary tokens")
    known = range(vocabulary_size)
    if not all(token_id in known for token_id in metadata.head_token_ids + metadata.tail_token_ids):
        raise ValueError("boundary tokens")
    if not 0 < vocabulary_size <= MAX_VOCABULARY:
        raise ValueError("vocabulary")
    return metadata, checksums
