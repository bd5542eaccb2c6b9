"""The drafter's rarer messages as our own types, without protobuf.

This module does not depend on sockets, sessions or graphs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.file_names import displayed
from speculant_graph.types import Fingerprint

VERSION_KEY = "x-speculant-version"
"""Key of the trailing metadata with a server's version."""


class SequenceStatus(enum.IntEnum):
    """The outcome for one sequence of a batch. The wire format uses the same values."""

    OK = 1
    """The sequence has a draft, possibly without nodes."""
    SESSION_LOST = 2
    """The session is unknown: open it again and send all tokens from position 0."""
    OUT_OF_SYNC = 3
    """The tokens leave a gap: send tokens again from ``next_position``."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Request to open a session."""

    session_id: int
    """Id of the session, chosen by the client; not 0."""
    tokenizer_sha256: str = ""
    """Hex digest of the client's tokenizer; empty: the server does not check it."""
    tenant: str = ""
    """The session's tenant; empty for the default tenant."""
    graph: str = ""
    """Graph name; empty for the default graph."""
    learn: bool = False
    """Whether later sessions of the tenant may draft from this session's accepted text."""


@dataclass(frozen=True, slots=True)
class OpenResponse:
    """Response to an :class:`OpenRequest`."""

    graph_generation: int
    """Generation of the graph that the session is pinned to."""
    tokenizer: Fingerprint
    """The graph's tokenizer; token ids are below its ``vocabulary_size``."""
    max_order: int
    """Longest context of the graph, in tokens."""
    next_position: int
    """The position that the server expects next: 0 for a new session."""


def public_name(tokenizer: str) -> str:
    """Return a tokenizer's name to show to clients, without the path of a local folder."""
    return displayed(Path(tokenizer).name if Path(tokenizer).is_absolute() else tokenizer)
