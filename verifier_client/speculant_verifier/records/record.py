"""Data of a request, collected during decoding and recorded when it ends. This module does not need torch."""

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
"""Number of stored decimals of log-probabilities. Values with this number of decimals are finer than a model's rounding
errors, and halve the size of the JSON text."""
Recorded = Annotated[TokenId, Field(ge=0)]
"""A token id."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request, with all data needed to train a draft model.

    Per-position fields have one entry for every output token.
    """

    request_id: str
    """Id of the request."""
    time_s: float
    """Time when the request ended, in seconds since 1970."""
    tenant: str
    """Tenant of the request."""
    target: str
    """Name of the target model."""
    tokenizer: str
    """Digest of the tokenizer; token ids are meaningless with another tokenizer."""
    draft_model: str
    """Name of the draft model, if any."""
    adapter: str
    """Digest of the draft model's adapter, if any."""
    strategy: str
    """Drafting strategy."""
    rule: str
    """Verification rule."""
    temperature: float
    """Sampling temperature; 0 is greedy."""
    seed: int
    """Sampling seed."""
    prompt: tuple[Recorded, ...]
    """Tokens of the prompt."""
    output: tuple[Recorded, ...]
    """Tokens of the output, including an end token."""
    drafted: tuple[tuple[Recorded, ...], ...]
    """Drafted tokens at each position, ordered from the drafter's best to its worst. Tokens after a rejected token were
    not verified and are omitted. The entry of a position is empty if no token was drafted there."""
    sources: tuple[tuple[str, ...], ...]
    """Source of each drafted token at each position: 'ngrams', 'model', 'both', or the strategy's name."""
    accepted: tuple[bool, ...]
    """For each position, whether the output token was drafted and thus needed no pass of its own."""
    top_token_ids: tuple[tuple[Recorded, ...], ...]
    """The target's most probable tokens at each position, best first, by its raw logits before temperature and other
    processors. The entry of a position is empty if these tokens are unknown because the output token came from
    ``verifier.target_cache``."""
    top_logprobs: tuple[tuple[float, ...], ...]
    """Log-probabilities of ``top_token_ids``."""
    num_passes: int
    """Number of target passes after the prompt."""
    pass_s: float
    """Mean duration of the target passes after the prompt, in seconds; 0 if there was no pass. All requests of a batch
    share its passes."""
    is_failure: bool
    """Whether the accepted share of the positions with drafted tokens is below ``record.threshold``."""
    reservoir_key: float
    """Random number in [0, 1) that decides whether replay keeps the request. Of each tenant's requests that are not
    failures, replay keeps the ones with the smallest keys. Replay is therefore a uniform sample of the requests that
    are not failures, whatever the order of writes."""
    document: str = ""
    """Name of the document to which the prompt belongs, as given by the caller; empty if unknown."""
    confidences: tuple[tuple[float, ...], ...] = ()
    """The drafter's probability of each drafted token at each position, to four decimals: its estimate, or q for
    sampled drafts. The entry of a position is empty if the drafter gives no probabilities."""
    schema_version: Literal[1] = 1
    """Version of the record schema."""

    @property
    def largest_id(self) -> TokenId:
        """The largest token id in prompt, output and top tokens; -1 if there are no tokens."""
        return max(chain(self.prompt, self.output, *self.top_token_ids), default=-1)

    @property
    def drafted_share(self) -> float:
        """Share of the output tokens that were drafted."""
        return sum(self.accepted) / len(self.output) if self.output else 0.0

    @property
    def acceptance(self) -> float | None:
        """Of the positions with drafted tokens, the share with an accepted token; None if nothing was drafted."""
        num_tried = sum(map(bool, self.drafted))
        return sum(self.accepted) / num_tried if num_tried else None


@dataclass(slots=True)
class RecordIdentity:
    """Record fields that come from neither the target nor the request.

    The fields may change while requests run; a record takes their values when its request ends.
    """

    draft_model: str = ""
    """Name of the draft model, if any."""
    adapter: str = ""
    """Digest of the draft model's adapter, if any."""
    tenant: str = ""
    """Tenant that is recorded for requests without a tenant of their own."""


@dataclass(slots=True)
class Trace:
    """Data of every emitted position of one request. The trace is mutable and belongs to the engine."""

    strategy: str
    """Strategy of the latest draft; before the first draft, the strategy that will make it."""
    drafted: list[tuple[TokenId, ...]] = field(default_factory=list)
    """For each position, the tokens that were drafted there."""
    sources: list[tuple[str, ...]] = field(default_factory=list)
    """For each position, the sources of the drafted tokens."""
    confidences: list[tuple[float, ...]] = field(default_factory=list)
    """For each position, the drafter's probabilities of the drafted tokens."""
    accepted: list[bool] = field(default_factory=list)
    """For each position, whether the output token was drafted."""
    top: list[NDArray[np.float64]] = field(default_factory=list)
    """For each step, the target's top tokens followed by their log-probabilities, shape ``[positions, 2 * k]``."""
    nodes: Sequence[int] = ()
    """For each position of the latest step, the node before it: 0 for the draft's root, j + 1 for draft node j.
    ``nodes`` is empty once the step's top tokens are recorded."""

    def add(self, draft: Draft, path: Sequence[int], num_tokens: int) -> None:
        """Record the data of every position that a step emitted.

        Args:
            draft: the verified draft.
            path: the accepted nodes, root to leaf, up to the last emitted token.
            num_tokens: number of emitted tokens.
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
        """Record the target's top tokens at the latest step's positions; None if unknown."""
        self.top.append(np.empty((len(self.nodes), 0)) if top is None else top)
        self.nodes = ()

    @property
    def rounded_confidences(self) -> tuple[tuple[float, ...], ...]:
        """For each position, the drafter's rounded probabilities of the drafted tokens."""
        return tuple(tuple(round(each, 4) for each in row) for row in self.confidences)

    @property
    def top_token_ids(self) -> tuple[tuple[TokenId, ...], ...]:
        """For each position, the target's most probable tokens."""
        return tuple(tuple(map(int, row[: len(row) // 2])) for step in self.top for row in step)

    @property
    def top_logprobs(self) -> tuple[tuple[float, ...], ...]:
        """For each position, the rounded log-probabilities of the target's most probable tokens."""
        return tuple(tuple(row) for step in self.top for row in step[:, step.shape[1] // 2 :].round(_DECIMALS).tolist())


def _confidences(draft: Draft, node: int, children: Sequence[int]) -> tuple[float, ...]:
    """Return the drafter's probabilities of the children of ``node`` (0: root); empty if the drafter gives none."""
    if draft.path_probabilities:
        above = draft.path_probabilities[node - 1] if node else 1.0
        return tuple(min(1.0, draft.path_probabilities[each] / above) if above else 0.0 for each in children)
    if len(draft.proposals):
        found = [(draft.proposals[each], draft.token_ids[each]) for each in children]
        return tuple(float(q.probabilities[q.token_ids == token_id].sum()) for q, token_id in found)
    return ()
