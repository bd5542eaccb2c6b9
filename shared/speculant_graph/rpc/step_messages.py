"""The drafter's rarer messages as values of ours: what protobuf carries, without protobuf.

Nothing here depends on sockets, sessions or graphs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.file_names import displayed
from speculant_graph.types import Fingerprint

VERSION_KEY = "x-speculant-version"
"""Trailing metadata in which a server names its version."""


class SequenceStatus(enum.IntEnum):
    """What became of one sequence of a batch; the numbers are those of the wire."""

    OK = 1
    """Drafted, possibly zero nodes."""
    SESSION_LOST = 2
    """The session is unknown: open it again and send all tokens from position 0."""
    OUT_OF_SYNC = 3
    """The tokens leave a gap: send again from ``next_position``."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Opens a session."""

    session_id: int
    """Chosen by the client, not 0."""
    tokenizer_sha256: str = ""
    """Hex digest of the client's tokenizer; empty: not checked."""
    tenant: str = ""
    """The session's tenant; empty for the default tenant."""
    graph: str = ""
    """Graph name; empty for the default graph."""
    learn: bool = False
    """Let later sessions of the tenant profit from what this one accepts."""


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """Answers :class:`OpenRequest`."""

    graph_generation: int
    """Generation of the graph the session is pinned to."""
    tokenizer: Fingerprint
    """The graph's tokenizer; token ids are below its ``vocabulary_size``."""
    max_order: int
    """Longest context of the graph, in tokens."""
    next_position: int
    """The position the server expects next: 0 for a new session."""


def public_name(tokenizer: str) -> str:
    """Return a tokenizer's name, as others may see it: without the folder of this machine that it was read from."""
    return displayed(Path(tokenizer).name if Path(tokenizer).is_absolute() else tokenizer)
