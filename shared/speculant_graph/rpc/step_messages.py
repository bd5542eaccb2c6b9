"""The drafter's wire messages as values of ours: what protobuf carries, without protobuf.

Nothing here depends on sockets, sessions or graphs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from speculant_graph.file_names import displayed
from speculant_graph.types import EMPTY_DRAFT, Draft, DraftOptions, Feedback, Fingerprint, TokenId

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


class SequenceRequest(NamedTuple):
    """One sequence of a step; the core reads it by its order."""

    token_ids: Sequence[TokenId]
    """Session: the tokens accepted since the last step. Stateless: the last tokens of the sequence."""
    session_id: int | None = None
    """None for a stateless sequence."""
    position: int = 0
    """Index in the whole sequence of the first of ``token_ids``."""
    node_budget: int | None = None
    """Most nodes to draft; 0 only takes the tokens. None, for all sequences or for none: the server's default."""
    seed: int = 0
    """Seed of sampling strategies."""
    feedback: Feedback | None = None
    """What the target made of the draft that it names; its rows hold no negative ids."""
    least_probability: float = 0.0
    """Nodes whose paths are less probable are not drafted."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step of a batch."""

    sequences: Sequence[SequenceRequest]
    """The batch, in order."""
    options: DraftOptions = field(default_factory=DraftOptions)
    """How to draft."""
    graph: str = ""
    """Graph of stateless sequences; empty for the default graph."""


class SequenceAnswer(NamedTuple):
    """What became of one sequence."""

    status: SequenceStatus
    """Whether its tokens were taken."""
    next_position: int = 0
    """The position the server expects next; 0 for a stateless sequence."""
    draft: Draft = EMPTY_DRAFT
    """The draft; empty unless ``status`` is OK."""
    graph_generation: int = 0
    """Generation of the graph that answered."""


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The answer to one step."""

    graph_generation: int
    """Generation of the graph that answered; 0 if there were several."""
    draft_id: int
    """Names the answer in later feedback; never 0."""
    sequences: Sequence[SequenceAnswer]
    """One per sequence of the request, in order."""
    server_time_ns: int = 0
    """Time spent on the step in the server, nanoseconds."""


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
