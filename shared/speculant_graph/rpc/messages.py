"""The drafter's wire messages as values of ours: what protobuf carries, without protobuf.

One value per sequence for a client, arrays of the batch for a server, which has less time. Nothing here knows sockets,
sessions or graphs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from speculant_graph.draft.batch import DraftBatch
from speculant_graph.draft.cost import CostCurve
from speculant_graph.draft.options import DraftOptions
from speculant_graph.graph.layout import Int64Array
from speculant_graph.types import EMPTY_DRAFT, Draft, Feedback, Fingerprint, TokenId

StepOptions = DraftOptions
"""How to draft."""


class SequenceStatus(enum.IntEnum):
    """What became of one sequence of a batch; the numbers are those of the wire."""

    OK = 1
    """Drafted, possibly zero nodes."""
    SESSION_LOST = 2
    """The session is unknown: open it again and send all tokens from position 0."""
    OUT_OF_SYNC = 3
    """The tokens leave a gap: send again from ``next_position``."""
    INVALID_TOKEN = 4
    """A token id is outside the vocabulary; nothing of the sequence was taken."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence of a step."""

    token_ids: tuple[TokenId, ...]
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


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step of a batch."""

    sequences: tuple[SequenceRequest, ...]
    """The batch, in order."""
    options: StepOptions = field(default_factory=StepOptions)
    """How to draft."""
    graph: str = ""
    """Graph of stateless sequences; empty for the default graph."""


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """A step as a server reads it: arrays of the batch instead of one value per sequence. Lists are per sequence."""

    graph: str
    """Graph of stateless sequences; empty for the default graph."""
    options: StepOptions
    """How to draft."""
    session_ids: list[int]
    """0 for a stateless sequence."""
    positions: list[int]
    """Index in the whole sequence of the first token sent."""
    contexts: list[Int64Array]
    """Tokens sent."""
    node_budgets: list[int] | None
    """Most nodes to draft; None for the server's default."""
    seeds: list[int]
    """Seeds of sampling strategies."""
    feedback: list[Feedback | None] | None
    """What the target made of drafts; None if nothing came."""

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.contexts)


@dataclass(frozen=True, slots=True, eq=False)
class BatchAnswer:
    """The answer to a step as a server writes it. Lists are per sequence."""

    graph_generation: int
    """Generation of the graph that answered; 0 if there were several."""
    draft_id: int
    """Names the answer in later feedback; never 0."""
    statuses: list[int]
    """Values of :class:`SequenceStatus`."""
    next_positions: list[int]
    """The position expected next; 0 for stateless sequences."""
    drafts: DraftBatch
    """What was drafted."""
    server_time_ns: int = 0
    """Time spent on the step in the server, nanoseconds."""
    sequence_generations: list[int] = field(default_factory=list)
    """Generations of the graphs that answered, if there were several."""


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
    """One per sequence of the request, in order. May be made when it is looked at."""
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
    """Whose session it is; empty for the default tenant."""
    graph: str = ""
    """Graph name; empty for the default graph."""
    idle_timeout_s: float | None = None
    """Evict after this idle time; None for the server's default."""
    learn: bool = False
    """Let later sessions of the tenant profit from what this one accepts."""
    cost: CostCurve | None = None
    """What verifying costs the client; None: nothing."""


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
