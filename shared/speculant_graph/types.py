"""The nouns of the project: what a drafter is asked, what it answers, and the interface between.

Frozen values only. Nothing here depends on files, sockets or torch.
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
"""Name of a file or a folder, in which bytes that are not UTF-8 are half surrogate pairs, as ``os.fsdecode`` makes
them; stored by :func:`~speculant_graph.file_names.stored_name`."""

CouplingName = Literal["none", "gumbel"]
"""Whether ``sampling`` draws by numbers of its own, or by the noise that the rules ``follow``, ``gumbel`` and ``nasd``
choose by."""

SiblingsName = Literal["none", "without-replacement", "independent"]
"""How ``sampling`` draws several children of a node: not at all, which makes chains; each from what older ones left of
q, for the rule ``tree-wor``; or each from all of q, for ``tree-iid``."""

SourceName = Literal["corpus", "session", "learned", "recycled", "neural"]
"""Where successors may come from: the graph; this sequence; what earlier sequences accepted; the target's own
top tokens; the neural model of the graph, if it has one."""

DraftSourceName = Literal["ngrams", "model", "both"]
"""What proposed a token of a draft: n-grams, the draft model, or each of them."""

SpecialTokensName = Literal["text", "parse"]
"""What a tokenizer's special tokens are where a text spells them out."""

OnErrorName = Literal["fail", "skip"]
"""What happens about files of a corpus that can't be read."""

RuleName = Literal["follow", "token", "block", "nasd", "tree-wor", "tree-iid", "gumbel"]
"""By which rule a draft is verified (see :class:`~speculant_graph.config.GenerationConfig`)."""

DrafterState = Literal["ok", "off", "unavailable"]
"""Whether the last step was answered: ``off`` means that no drafter was asked for."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a tokenizer: equal digests mean that token ids mean the same text."""

    name: FileName
    """Name or folder the tokenizer was loaded from, for messages to people."""
    sha256: str
    """Hex digest of vocabulary, merges and special tokens."""
    vocabulary_size: int
    """Token ids are below this number."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The sparse distribution q that one draft token was drawn from."""

    token_ids: NDArray[np.uint32]
    """Support, shape ``[s]``, ascending."""
    probabilities: NDArray[np.float32]
    """Shape ``[s]``, sums to 1 up to float32 rounding; exactly the numbers that were drawn from."""


class Proposals(Sequence[Proposal]):
    """Distributions of the nodes of one draft, made when they are looked at: most verifiers never do."""

    __slots__ = ("_bounds", "_probabilities", "_token_ids")

    def __init__(self, bounds: Sequence[int], token_ids: NDArray[Any], probabilities: NDArray[Any]) -> None:
        """Take the distributions of all nodes.

        Args:
            bounds: that of node j lies from ``bounds[j]`` to ``bounds[j + 1]``.
            token_ids: of the distributions, one after another.
            probabilities: the same.
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
    """Proposed tokens: a tree of nodes, of which a chain is the simplest case."""

    token_ids: tuple[TokenId, ...] = ()
    """One per node."""
    parents: tuple[int, ...] = ()
    """One per node: 0 = child of the root (the last known token), j+1 = child of node j; at most its own index."""
    path_probabilities: tuple[float, ...] = ()
    """One per node, the estimated probability that the path to it is accepted; empty if the strategy has none."""
    proposals: Sequence[Proposal] = ()
    """One per node for sampling strategies, else empty. May be made when it is looked at."""
    strategy: StrategyName = "greedy"
    """What made it."""
    terminated_early: bool = False
    """True if it holds fewer nodes than asked for: no known context was left, or no node was probable enough."""
    draft_id: int = 0
    """Names the draft in later feedback; 0 if it is not on record."""
    sources: tuple[DraftSourceName, ...] = ()
    """One per node, what proposed it, where a draft model drafts with n-grams; else empty."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if every node has at most one child."""
        return self.parents == tuple(range(len(self.token_ids)))

    def part(self, nodes: Sequence[int]) -> Draft:
        """Return the draft with these nodes only: ascending indices, each of them with all its ancestors."""
        count = len(nodes)
        if count == len(self):
            return self
        if not count or nodes[-1] == count - 1:
            # The first ones, as of all chains. dataclasses.replace takes three times as long as the constructor.
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
        """Return the draft under an id."""
        return Draft(
            self.token_ids, self.parents, self.path_probabilities, self.proposals, self.strategy,
            self.terminated_early, draft_id, self.sources,
        )  # fmt: skip

    def best_path(self) -> Draft:
        """Return the chain from the root to the most probable leaf that its first children lead to.

        Strategies list the best child of a node before the others.
        """
        if self.is_chain:
            return self
        path: list[int] = []
        for node, parent in enumerate(self.parents):
            if parent == (path[-1] + 1 if path else 0):
                path.append(node)
        return self.part(path)


EMPTY_DRAFT = Draft()
"""No proposal: the verifier continues alone."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the target thought at positions of a verified draft, for the drafter to learn."""

    draft_id: int
    """The draft that was verified (its ``draft_id``)."""
    nodes: Sequence[int]
    """Per row the node it follows: 0 = the root, j+1 = node j of the draft, accepted or not."""
    rows: NDArray[np.int64]
    """Per row the target's most probable next tokens, best first, shape ``[nodes, width]``."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How to draft, as one request may choose it.

    Fields that are settings, too, have their meaning and bounds, see :class:`~speculant_graph.config.DraftConfig`; None
    leaves them to the drafter's.
    """

    strategy: StrategyName | None = None
    max_candidates: int | None = None
    omit_proposals: bool = False
    """Leave the distributions q out."""
    max_depth: int | None = None
    max_branches: int | None = None
    coupling: CouplingName | None = None
    """How ``sampling`` draws chains: 'gumbel', by the noise of seed, position and token that the verifier's rule
    chooses by, so that they agree more often; None or 'none', by numbers of its own. The distribution is the same."""
    siblings: SiblingsName = "none"
    """What children the verifier's rule can make use of, and so whether ``sampling`` draws trees: a chain suits every
    rule, and a rule for siblings that were drawn independently must not get any that were not. Without the
    distributions q, which rules for trees need, it never does."""
    temperature: float | None = None
    sources: frozenset[SourceName] | None = None
    omit_neural: bool = False
    """Leave ``neural`` out of the sources, whatever they are: it takes more time than it brings."""
    n: int | None = None
    """Of ``nasd``, as the two below, which drafts in a verifier: they do not travel. At most the setting's."""
    filler_top_k: int | None = None
    """At most the setting's."""
    stop_if_unknown: bool | None = None

    def over(self, others: DraftOptions) -> DraftOptions:
        """Return these options, and the others' where these leave something open."""
        if self is DEFAULT_OPTIONS or others is self:  # the same for most steps, and comparing takes a microsecond
            return others
        return replace(
            others,
            **{each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default},
        )


DEFAULT_OPTIONS = DraftOptions()
"""All left to the configuration."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """What a drafter receives about one sequence for one step."""

    session_id: int
    """Id of the open session."""
    token_ids: Sequence[TokenId]
    """The whole sequence so far, prompt included. Drafters send or read only what they have not seen."""
    node_budget: int
    """Most nodes to draft."""
    seed: int = 0
    """Seed of sampling strategies: the same seed and position give the same draft."""
    feedback: Feedback | None = None
    """What the target made of the latest draft, where a verifier reports it."""
    options: DraftOptions = DEFAULT_OPTIONS
    """How to draft; what they leave open is the drafter's."""
    least_probability: float = 0.0
    """Nodes whose paths are less probable are not drafted, from 0 to 1: the verifier knows that they can't pay."""
    is_priced: bool = True
    """Whether the verifier keeps only nodes that pay, so that a draft model need not fill the budget."""


@dataclass(frozen=True, slots=True)
class DrafterStatistics:
    """What a drafter did since it was made."""

    steps: int = 0
    """Steps asked for."""
    failed_steps: int = 0
    """Steps that got no answer in time (including those not sent while the drafter was known to be down)."""
    drafted_nodes: int = 0
    """Nodes received."""
    reopened_sessions: int = 0
    """Sessions opened again after the drafter had lost them."""
    skipped_steps: int = 0
    """Failed steps that were not even sent, as the drafter was known to be down."""
    late_answers: int = 0
    """Answers that came after their step had gone on without them."""
    is_paused: bool = False
    """Whether the sidecar is not asked now, as it failed."""
    round_trip_s: tuple[float, ...] = field(default=(), repr=False)
    """Duration of the most recent answered steps, oldest first."""
    last_failure: str = ""
    """The latest failure, for people."""


MAX_TENANT_CHARACTERS = 256
"""Of a tenant's name."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a sequence wants of a drafter that serves many; None leaves it to the drafter's own settings."""

    tenant: str | None = None
    """Whose text it is: it drafts from what this tenant's earlier sequences accepted, and teaches no other's."""
    graph: str | None = None
    """Name of the graph to draft from."""
    learn: bool | None = None
    """Whether the tenant's later sequences profit from what it accepts."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """What became of a step, for the drafter."""

    seconds: float
    """How long the pass of the target took."""


class RowDrafter(Protocol):
    """A drafter for the rows of an engine's batch: columns in, columns out. May raise anything."""

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session for a sequence; see :class:`Drafter`."""

    def draft_rows(
        self,
        batch: Batch,
        budgets: list[int],
        prices: StepPrices | None = None,
        options: DraftOptions = DEFAULT_OPTIONS,
    ) -> RowDrafts:
        """Draft for a batch, and keep what pays.

        Args:
            batch: the rows, whose sessions are open.
            budgets: of every row, most nodes.
            prices: what a node must bring; None keeps whole drafts.
            options: how to draft.
        """

    def finish(self, session_id: int) -> None:
        """End a session and free what it held. Unknown ids are ignored."""

    def close(self) -> None:
        """Free sockets and threads. The drafter can't be used afterwards."""


class Drafter(Protocol):
    """Whatever proposes tokens: a sidecar's client, a graph in this process, or nothing.

    Implementations never raise on the decoding path: a failure is an empty draft and a count in ``statistics``.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What its drafts are like. A drafter of one's own may do without: it drafts as ``draft.strategy`` does."""

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session for a sequence. Raises only if asked to be strict or if the tokenizers differ.

        Returns why the session gets no drafts if its options are the reason, one line for the caller.

        The engine passes ``options`` only for requests that have some, so a drafter of one's own may do without.
        """

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch of sequences, in order; one exchange for all of them."""

    def observe(self, report: PassReport) -> float:
        """Take what became of the latest step, once a step.

        Returns seconds of its drafting that the drafter itself weighed against what they bring; 0 if it weighs none.
        """

    def finish(self, session_id: int) -> None:
        """End a session and free what it held. Unknown ids are ignored."""

    def close(self) -> None:
        """Free sockets and threads. The drafter can't be used afterwards."""


def capabilities_of(drafter: Drafter, strategy: StrategyName) -> Capabilities:
    """Return what a drafter's drafts are like; if it does not say, those of the configured strategy."""
    found: Capabilities = getattr(drafter, "capabilities", STRATEGIES[strategy])
    return found
