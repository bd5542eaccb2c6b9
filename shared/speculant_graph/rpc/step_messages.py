"""The drafter's rare messages, such as opening a session, as plain Python types without protobuf.

This module does not depend on sockets, sessions or graphs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.file_names import displayed
from speculant_graph.types import Fingerprint

VERSION_KEY = "x-speculant-version"
"""Key of the trailing gRPC metadata that contains the server's version."""


class SequenceStatus(enum.IntEnum):
    """Outcome of a draft request for one sequence of its batch.

    The wire format uses the same numbers for these outcomes.
    """

    OK = 1
    """The sequence has a draft, possibly without nodes."""
    SESSION_LOST = 2
    """The session is unknown or was dropped: the client must open it again and send all tokens from position 0."""
    OUT_OF_SYNC = 3
    """The tokens leave a gap or end too early: the client must send tokens again from ``next_position``."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Request to open a session."""

    session_id: int
    """Id of the session, chosen by the client; not 0."""
    tokenizer_sha256: str = ""
    """Hex digest of the client's tokenizer; if it is empty, the server does not check the tokenizer."""
    tenant: str = ""
    """The session's tenant; empty for the default tenant."""
    graph: str = ""
    """Name of the graph to draft from; empty for the default graph."""
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
    """Position of the next token that the server expects; 0 for a new session."""


def public_name(tokenizer: str) -> str:
    """Return a tokenizer's name to show to clients, without the path of a local folder."""
    return displayed(Path(tokenizer).name if Path(tokenizer).is_absolute() else tokenizer)
