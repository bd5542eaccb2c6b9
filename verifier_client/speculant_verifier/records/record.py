"""What is collected of a request while it is decoded, and recorded when it has ended. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from speculant_graph.types import Draft, TokenId
from speculant_verifier.rules.draft_target import children_of

_DECIMALS = 5
"""Of log-probabilities: more than a model's own rounding leaves, and half as long in JSON."""
Recorded = Annotated[TokenId, Field(ge=0)]
"""A token's id."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request: all that a draft model can learn from it.

    Each field per position has an entry for every output token.
    """

    request_id: str
    """Which request."""
    time_s: float
    """When it ended, seconds since 1970."""
    tenant: str
    """Whose text it is."""
    target: str
    """Name of the model that wrote it."""
    tokenizer: str
    """Digest of its tokenizer: token ids mean nothing to another one."""
    draft_model: str
    """Name of the draft model; empty if there was none."""
    adapter: str
    """Digest of the draft model's adapter; empty if it had none."""
    strategy: str
    """How drafts were made."""
    rule: str
    """By which rule they were verified."""
    temperature: float
    """What the target's tokens were drawn with; 0 is greedy."""
    seed: int
    """Seed of the request."""
    prompt: tuple[Recorded, ...]
    """Its prompt."""
    output: tuple[Recorded, ...]
    """What the target wrote, an end token included."""
    drafted: tuple[tuple[Recorded, ...], ...]
    """Per position the tokens that were drafted after the tokens before it, the drafter's best first; of those after a
    rejected token none was judged, so they are not here. Empty where nothing was drafted."""
    sources: tuple[tuple[str, ...], ...]
    """Per position and drafted token what proposed it: 'ngrams', 'model', 'both', or the strategy's name."""
    accepted: tuple[bool, ...]
    """Per position whether the output's token was drafted, and so came without a pass of its own."""
    top_token_ids: tuple[tuple[Recorded, ...], ...]
    """Per position the target's most probable tokens by its raw logits, before temperature and the like, best first.
    Empty where they are not known, as the token came from ``verifier.target_cache``."""
    top_logprobs: tuple[tuple[float, ...], ...]
    """Their log-probabilities."""
    num_passes: int
    """Passes of the target after the prompt."""
    pass_s: float
    """Mean seconds that they took; 0 without one. Of a batch a pass is for all of its requests."""
    is_failure: bool
    """Whether of the positions that were tried fewer were accepted than ``record.threshold`` asks for."""
    reservoir_key: float
    """A random number in [0, 1): of the requests of a tenant that were no failures, those with the smallest ones are
    the replay buffer. So it is a uniform sample of all of them, whatever was written when."""
    document: str = ""
    """What the prompt is a part of, as the caller named it; empty if it did not."""
    confidences: tuple[tuple[float, ...], ...] = ()
    """Per position and drafted token how probable the drafter held it there, to four decimals: its estimate, or of
    sampled drafts q. Empty where it has none."""
    schema_version: Literal[1] = 1
    """Version of this record."""

    @property
    def largest_id(self) -> TokenId:
        """The largest id of a token that can be trained on, -1 without any."""
        return max(chain(self.prompt, self.output, *self.top_token_ids), default=-1)

    @property
    def drafted_share(self) -> float:
        """Share of the output that was drafted."""
        return sum(self.accepted) / len(self.output) if self.output else 0.0

    @property
    def acceptance(self) -> float | None:
        """Accepted share of the positions that were tried: those for which anything was drafted. None without one."""
        num_tried = sum(map(bool, self.drafted))
        return sum(self.accepted) / num_tried if num_tried else None


@dataclass(slots=True)
class RecordIdentity:
    """What records hold that comes from neither the target nor the request; mutable, read when a request ends."""

    draft_model: str = ""
    """Name of the draft model; empty if there is none."""
    adapter: str = ""
    """Digest of its adapter; empty if it has none."""
    tenant: str = ""
    """Whose the text is of requests that name no tenant."""


@dataclass(slots=True)
class Trace:
    """What happened at every emitted position of one request; mutable, owned by the engine."""

    strategy: str
    """What made the latest draft, or would make it."""
    drafted: list[tuple[TokenId, ...]] = field(default_factory=list)
    """Per position what was drafted for it."""
    sources: list[tuple[str, ...]] = field(default_factory=list)
    """Per position what proposed these."""
    confidences: list[tuple[float, ...]] = field(default_factory=list)
    """Per position how probable the drafter held these."""
    accepted: list[bool] = field(default_factory=list)
    """Per position whether its token was drafted."""
    top: list[NDArray[np.float64]] = field(default_factory=list)
    """Per step the target's most probable tokens and then their log-probabilities, shape ``[positions, 2 * k]``."""
    nodes: Sequence[int] = ()
    """After which nodes of the latest draft its positions came, 0 being the root, j+1 node j: their most probable
    tokens are still to be added."""

    def add(self, draft: Draft, path: Sequence[int], num_tokens: int) -> None:
        """Note the positions of a step.

        Args:
            draft: what was verified.
            path: the nodes that were accepted, root to leaf, up to the last emitted token.
            num_tokens: tokens that were emitted.
        """
        self.nodes = [0, *(node + 1 for node in path)][:num_tokens]
        if len(draft):
            self.strategy = draft.strategy
        children = children_of(draft.parents)
        for depth, node in enumerate(self.nodes):
            self.drafted.append(tuple(draft.token_ids[child] for child in children[node]))
            self.sources.append(
                tuple(draft.sources[child] if draft.sources else draft.strategy for child in children[node])
            )
            self.confidences.append(_confidences(draft, node, children[node]))
            self.accepted.append(depth < len(path))

    def add_top(self, top: NDArray[np.float64] | None) -> None:
        """Note the target's most probable tokens of the latest step's positions; None if they are not known."""
        self.top.append(np.empty((len(self.nodes), 0)) if top is None else top)
        self.nodes = ()

    @property
    def rounded_confidences(self) -> tuple[tuple[float, ...], ...]:
        """Per position how probable the drafter held what it drafted, rounded."""
        return tuple(tuple(round(each, 4) for each in row) for row in self.confidences)

    @property
    def top_token_ids(self) -> tuple[tuple[TokenId, ...], ...]:
        """Per position the target's most probable tokens."""
        return tuple(tuple(map(int, row[: len(row) // 2])) for step in self.top for row in step)

    @property
    def top_logprobs(self) -> tuple[tuple[float, ...], ...]:
        """Their log-probabilities, rounded."""
        return tuple(tuple(row) for step in self.top for row in step[:, step.shape[1] // 2 :].round(_DECIMALS).tolist())


def _confidences(draft: Draft, node: int, children: Sequence[int]) -> tuple[float, ...]:
    """Return how probable the drafter held children of a node (0 = the root) after it; empty if it does not say."""
    if draft.path_probabilities:
        above = draft.path_probabilities[node - 1] if node else 1.0
        return tuple(min(1.0, draft.path_probabilities[each] / above) if above else 0.0 for each in children)
    if len(draft.proposals):
        found = [(draft.proposals[each], draft.token_ids[each]) for each in children]
        return tuple(float(q.probabilities[q.token_ids == token_id].sum()) for q, token_id in found)
    return ()
