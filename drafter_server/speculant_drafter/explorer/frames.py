"""Messages between the sidecar and the explorer's process: a line of JSON and bytes, with a length before them."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

from speculant_graph.graph.metadata import GraphMetadata

LENGTH = struct.Struct("<I")
"""What stands before a message: its bytes."""
MAX_BYTES = 1 << 24
"""Longest message."""


def pack(header: dict[str, Any], body: bytes) -> bytes:
    """Return a message with its length."""
    content = json.dumps(header).encode() + b"\n" + body
    return LENGTH.pack(len(content)) + content


def unpack(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and body of a message without its length."""
    header, _, body = content.partition(b"\n")
    parsed: dict[str, Any] = json.loads(header)
    return parsed, body


def identity_of(metadata: GraphMetadata) -> str:
    """Return a digest by which two processes tell that they have read the same file."""
    facts = (metadata.built_at, metadata.num_tokens, metadata.nodes_per_level, metadata.contexts_per_order)
    content = repr((*facts, metadata.tokenizer.sha256)).encode() + metadata.calibration
    return hashlib.sha256(content).hexdigest()
