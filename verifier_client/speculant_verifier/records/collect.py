"""What is collected of a request while it is decoded. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from speculant_graph.types import Draft, TokenId
from speculant_verifier.rules.target import children_of

_DECIMALS = 5
"""Of log-probabilities: more than a model's own rounding leaves, and half as long in JSON."""


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
            self.accepted.append(depth < len(path))

    def add_top(self, top: NDArray[np.float64] | None) -> None:
        """Note the target's most probable tokens of the latest step's positions; None if they are not known."""
        self.top.append(np.empty((len(self.nodes), 0)) if top is None else top)
        self.nodes = ()

    @property
    def top_token_ids(self) -> tuple[tuple[TokenId, ...], ...]:
        """Per position the target's most probable tokens."""
        return tuple(tuple(map(int, row[: len(row) // 2])) for step in self.top for row in step)

    @property
    def top_logprobs(self) -> tuple[tuple[float, ...], ...]:
        """Their log-probabilities, rounded."""
        return tuple(tuple(row) for step in self.top for row in step[:, step.shape[1] // 2 :].round(_DECIMALS).tolist())
