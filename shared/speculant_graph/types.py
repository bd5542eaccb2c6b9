"""The data types of the project: requests to a drafter, its drafts, and the drafter's interface.

Objects of these types are frozen. This module does not depend on files, sockets or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, overload

from speculant_graph.file_names import StoredName
from speculant_graph.strategies import STRATEGIES, Capabilities, StrategyName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from speculant_graph._core import Batch, RowDrafts
    from speculant_graph.budget import StepPrices

TokenId = int
"""Index into a tokenizer's vocabulary."""

FileName = Annotated[str, StoredName()]
"""Name of a file or a folder. Bytes that are not UTF-8 become unpaired surrogates, as in ``os.fsdecode``.
:func:`~speculant_graph.file_names.stored_name` converts a name to its stored form."""

CouplingName = Literal["none", "gumbel"]
"""Source of the random numbers of the strategy ``sampling``: the strategy itself, or the noise of the rules ``follow``,
``gumbel`` and ``nasd``."""

SiblingsName = Literal["none", "without-replacement", "independent"]
"""How the strategy ``sampling`` draws sibling nodes. 'none' makes chains, 'without-replacement' is for the rule
``tree-wor``, and 'independent' draws each sibling from q, for the rule ``tree-iid``."""

SourceName = Literal["corpus", "session", "learned", "recycled", "neural"]
"""Source of a drafted token: graph, this sequence, earlier texts, target's top tokens, or neural model and mixer."""

DraftSourceName = Literal["ngrams", "model", "both"]
"""The proposer of a drafted token: n-grams, the draft model, or both."""

SpecialTokensName = Literal["text", "parse"]
"""Whether special tokens spelled out in a text are read as text or as tokens."""

OnErrorName = Literal["fail", "skip"]
"""Whether corpus files that can't be read fail a build or are skipped."""

RuleName = Literal["follow", "token", "block", "nasd", "tree-wor", "tree-iid", "gumbel"]
"""The rule that verifies a draft (see :class:`~speculant_graph.config.GenerationConfig`)."""

DrafterState = Literal["ok", "off", "unavailable"]
"""Whether the drafter answered the last step; ``off`` means that no drafter is configured."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a tokenizer: if two digests are equal, token ids stand for the same text."""

    name: FileName
    """Name or folder that the tokenizer was loaded from, for messages."""
    sha256: str
    """SHA-256 digest of the tokenizer's vocabulary, merges and special tokens, in hexadecimal."""
    vocabulary_size: int
    """Number of token ids in the vocabulary; all ids are below this number."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The sparse distribution q that one draft token was drawn from."""

    token_ids: NDArray[np.uint32]
    """Token ids in the support of q, ascending, shape ``[s]``."""
    probabilities: NDArray[np.float32]
    """Token probabilities, shape ``[s]``, exactly as in the draw; they sum to 1 up to float32 rounding."""


class Proposals(Sequence[Proposal]):
    """Distributions q of one draft's nodes; each is created when it is accessed, because most verifiers read none."""

    __slots__ = ("_bounds", "_probabilities", "_token_ids")

    def __init__(self, bounds: Sequence[int], token_ids: NDArray[Any], probabilities: NDArray[Any]) -> None:
        """Store the distributions of all nodes.

        Args:
            bounds: node j's distribution is the slice ``bounds[j]:bounds[j + 1]`` of both arrays.
            token_ids: token ids of the distributions, concatenated.
            probabilities: their probabilities, concatenated.
        """
        self._bounds = bounds
        self._token_ids = token_ids
        self._probabilities = probabilities

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> Proposal: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Proposal]: ...
    def __getitem__(self, index: int | slice) -> Proposal | Sequence[Proposal]:
        if isinstance(index, slice):
            return [self[rank] for rank in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"no node {index} in a draft of {size}")
        start, end = self._bounds[index % size], self._bounds[index % size + 1]
        return Proposal(self._token_ids[start:end], self._probabilities[start:end])


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft: a tree of proposed tokens, of which a chain is the simplest case."""

    token_ids: tuple[TokenId, ...] = ()
    """Token id of each node."""
    parents: tuple[int, ...] = ()
    """Parent per node: 0 = the root (the last known token), j+1 = node j; at most the node's own index."""
    path_probabilities: tuple[float, ...] = ()
    """For each node, the estimated probability that its whole path is accepted; empty if the strategy has none."""
    proposals: Sequence[Proposal] = ()
    """For sampling strategies, the distribution q of each node, perhaps created only when it is read; else empty."""
    strategy: StrategyName = "greedy"
    """The strategy that made the draft."""
    terminated_early: bool = False
    """True if the draft is smaller than requested: no known context was left, or no node was probable enough."""
    draft_id: int = 0
    """Id that later feedback uses for this draft; 0 if the drafter does not keep the draft."""
    sources: tuple[DraftSourceName, ...] = ()
    """Proposer of each node if a draft model and n-grams draft together; else empty."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if every node has at most one child."""
        return self.parents == tuple(range(len(self.token_ids)))

    def part(self, nodes: Sequence[int]) -> Draft:
        """Return a draft of the given nodes; the indices are ascending and include all ancestors of each node."""
        count = len(nodes)
        if count == len(self):
            return self
        if not count or nodes[-1] == count - 1:
            # The nodes are a prefix, as for all chains. dataclasses.replace takes three times as long as the
            # constructor.
            return Draft(
                self.token_ids[:count], self.parents[:count], self.path_probabilities[:count], self.proposals[:count],
                self.strategy, self.terminated_early, self.draft_id, self.sources[:count],
            )  # fmt: skip
        new_index = {0: 0} | {node + 1: i + 1 for i, node in enumerate(nodes)}
        probabilities, proposals = self.path_probabilities, self.proposals
        return replace(
            self,
            token_ids=tuple(self.token_ids[node] for node in nodes),
            parents=tuple(new_index[self.parents[node]] for node in nodes),
            path_probabilities=tuple(probabilities[node] for node in nodes) if probabilities else (),
            proposals=tuple(proposals[node] for node in nodes) if len(proposals) else (),
            sources=tuple(self.sources[node] for node in nodes) if self.sources else (),
        )

    def numbered(self, draft_id: int) -> Draft:
        """Return a copy of the draft with another ``draft_id``."""
        return Draft(
            self.token_ids, self.parents, self.path_probabilities, self.proposals, self.strategy,
            self.terminated_early, draft_id, self.sources,
        )  # fmt: skip

    def best_path(self) -> Draft:
        """Return the chain from the root through the first child of each node.

        Strategies list the best child of a node first.
        """
        if self.is_chain:
            return self
        path: list[int] = []
        for node, parent in enumerate(self.parents):
            if parent == (path[-1] + 1 if path else 0):
                path.append(node)
        return self.part(path)


EMPTY_DRAFT = Draft()
"""A draft without tokens: the verifier continues alone."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """The target's top tokens at positions of a verified draft, for the drafter to learn."""

    draft_id: int
    """Id of the verified draft (its ``draft_id``)."""
    nodes: Sequence[int]
    """For each row, the node that its tokens follow: 0 = the root, j+1 = node j of the draft, accepted or not."""
    rows: NDArray[np.int64]
    """For each of ``nodes``, the target's most probable next tokens, best first, shape ``[nodes, width]``."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Drafting options of one request.

    A field that is named like a setting has the setting's meaning and bounds (see
    :class:`~speculant_graph.config.DraftConfig`). A field that is None takes the drafter's setting.
    """

    strategy: StrategyName | None = None
    max_candidates: int | None = None
    omit_proposals: bool = False
    """Whether to omit the distributions q from the draft."""
    max_depth: int | None = None
    max_branches: int | None = None
    coupling: CouplingName | None = None
    """Random numbers with which ``sampling`` draws chains: its own (None, 'none'), or the verifier's noise ('gumbel'),
    with which the verifier agrees more often. The distribution of the drafted tokens is the same in both cases."""
    siblings: SiblingsName = "none"
    """Kind of siblings that the verifier's rule can use. This kind decides whether ``sampling`` draws trees; every
    verification rule accepts chains. A rule for independent siblings must not get siblings drawn in another way. If q
    is omitted, ``sampling`` draws chains, because rules for trees need q."""
    temperature: float | None = None
    sources: frozenset[SourceName] | None = None
    omit_neural: bool = False
    """Whether to omit the source ``neural``; true when this source costs more time than it saves."""
    n: int | None = None
    """Option ``n`` of the strategy ``nasd``; at most the value of the setting ``draft.n``. The options of ``nasd`` are
    not sent on the wire, because ``nasd`` drafts in the verifier's process."""
    filler_top_k: int | None = None
    """Option ``filler_top_k`` of the strategy ``nasd``; at most the value of the setting ``draft.filler_top_k``."""
    stop_if_unknown: bool | None = None

    def over(self, others: DraftOptions) -> DraftOptions:
        """Return these options, with unset fields taken from ``others``."""
        if self is DEFAULT_OPTIONS or others is self:  # true for most steps; a comparison takes a microsecond
            return others
        return replace(
            others,
            **{each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default},
        )


DEFAULT_OPTIONS = DraftOptions()
"""Options in which no field is set: the drafter's settings apply."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """A drafter's input for one sequence in one step."""

    session_id: int
    """Id of the sequence's open session."""
    token_ids: Sequence[TokenId]
    """The whole sequence so far, including the prompt. A drafter sends or reads only the tokens that are new to it."""
    node_budget: int
    """Maximum number of nodes to draft."""
    seed: int = 0
    """Seed of sampling strategies: the same seed and position give the same draft."""
    feedback: Feedback | None = None
    """The target's top tokens at the nodes of the latest draft, if the verifier reports them."""
    options: DraftOptions = DEFAULT_OPTIONS
    """Drafting options; a field that is not set takes the drafter's setting."""
    least_probability: float = 0.0
    """Minimum path probability, from 0 to 1: less probable nodes are not drafted, because they can't pay off."""
    is_priced: bool = True
    """Whether the verifier keeps only nodes that pay off; if so, a draft model need not fill the budget."""


@dataclass(frozen=True, slots=True)
class DrafterStatistics:
    """Counts of steps, nodes and failures since a drafter was created."""

    steps: int = 0
    """Number of steps for which drafts were requested."""
    failed_steps: int = 0
    """Number of steps without a timely response, including steps not sent because the drafter was known to be down."""
    drafted_nodes: int = 0
    """Number of draft nodes received from the drafter."""
    reopened_sessions: int = 0
    """Number of sessions that were reopened after the drafter had lost them."""
    skipped_steps: int = 0
    """Number of failed steps that were not sent, because the drafter was known to be down."""
    late_answers: int = 0
    """Number of responses that arrived too late, after their step had continued without a draft."""
    num_paused: int = 0
    """Number of sidecars that are suspended after failures."""
    round_trip_s: tuple[float, ...] = field(default=(), repr=False)
    """Durations of the most recent answered steps in seconds, oldest first."""
    last_failure: str = ""
    """Description of the latest failure, for messages."""


MAX_TENANT_CHARACTERS = 256
"""Maximum length of a tenant's name, in characters."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of one sequence for a drafter that serves many sequences; None stands for the drafter's setting."""

    tenant: str | None = None
    """The sequence's tenant. Text that was learned from a sequence serves only drafts of the same tenant."""
    graph: str | None = None
    """Name of the graph to draft from."""
    learn: bool | None = None
    """Whether the tenant's later sequences draft from this sequence's accepted text."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """Report on a finished step, for the drafter."""

    seconds: float
    """Duration of the target model's forward pass, in seconds."""


class RowDrafter(Protocol):
    """A drafter for all rows of an engine's batch, with columnar inputs and outputs. Methods may raise any error."""

    @property
    def state(self) -> DrafterState:
        """Whether the drafter answered the last step."""

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts of steps, nodes and failures since the drafter was created."""

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session for a sequence, as :meth:`Drafter.open` does."""

    def draft_rows(
        self,
        batch: Batch,
        budgets: list[int],
        prices: StepPrices | None = None,
        options: DraftOptions = DEFAULT_OPTIONS,
    ) -> RowDrafts:
        """Draft for a batch, and keep only nodes that are worth their verification cost.

        Args:
            batch: the rows, whose sessions are open.
            budgets: per row, the maximum number of nodes.
            prices: the gain that a node must exceed to be kept; None keeps whole drafts.
            options: drafting options.
        """

    def finish(self, session_id: int) -> None:
        """End a session and free its memory. Ids of unknown sessions are ignored."""

    def close(self) -> None:
        """Free the drafter's sockets and threads. The drafter can't be used afterwards."""


class Drafter(Protocol):
    """The interface of a drafter: a sidecar's client, a graph in this process, or a drafter that never drafts.

    A failure while decoding raises no error: the draft is empty, and ``statistics`` counts the failure.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Properties of this drafter's drafts; if a custom drafter omits them, those of ``draft.strategy`` apply."""

    @property
    def state(self) -> DrafterState:
        """Whether the drafter answered the latest step."""

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts of steps, nodes and failures since the drafter was created."""

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session for a sequence. Raises only if the drafter is strict or if the tokenizers differ.

        If the session gets no drafts because of its options, returns one line that explains why.

        The engine passes ``options`` only for requests that have some, so a custom drafter may omit the parameter.
        """

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return drafts for a batch of sequences, in order, with one exchange for the whole batch."""

    def observe(self, report: PassReport) -> float:
        """Receive the outcome of the latest step; called once per step.

        Returns the drafting time, in seconds, whose cost the drafter has already weighed against the gain; 0 if none.
        """

    def finish(self, session_id: int) -> None:
        """End a session and free its memory. Ids of unknown sessions are ignored."""

    def close(self) -> None:
        """Free the drafter's sockets and threads. The drafter can't be used afterwards."""


def capabilities_of(drafter: Drafter, strategy: StrategyName) -> Capabilities:
    """Return the properties of a drafter's drafts; by default those of the configured strategy."""
    found: Capabilities = getattr(drafter, "capabilities", STRATEGIES[strategy])
    return found
