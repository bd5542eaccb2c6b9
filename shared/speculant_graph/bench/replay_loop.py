"""Replays a recorded output as if a model wrote it again: draft, keep what agrees, go on behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from speculant_graph.bench.traces import Trace
from speculant_graph.types import Draft, TokenId

if TYPE_CHECKING:
    from speculant_graph.draft.cost import CostCurve
    from speculant_graph.draft.session_drafter import DraftOrder


class ReplayDrafter(Protocol):
    """What a replay needs of a :class:`~speculant_graph.draft.session_drafter.SessionDrafter`."""

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False, cost: CostCurve | None = None) -> None:
        """Begin a sequence."""

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Add the prompt, and then the tokens of every step."""

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]]) -> None:
        """Take the target's top tokens after the root (0) or node j (j + 1) of the latest draft."""

    def draft(self, orders: Sequence[DraftOrder]) -> list[Draft]:
        """Draft for sequences."""

    def close(self, session_id: int) -> None:
        """End a sequence."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How outputs are replayed."""

    node_budget: int
    """Most nodes of a draft."""
    learn: bool = False
    """Let later traces gain by what earlier ones accepted, and feed the target's own tokens back."""
    cost: CostCurve | None = None
    """What the drafter is told of the cost of verifying."""
    seed: int = 0
    """Seed of strategies that draw."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One draft and what became of it."""

    parents: tuple[int, ...]
    """The draft's, one per node."""
    path_probabilities: tuple[float, ...]
    """The draft's; empty if the strategy has none."""
    path: tuple[int, ...]
    """The nodes that agreed with the record, from the root on."""
    num_left: int
    """Tokens of the record that were left before the step, at least one."""
    draft_ns: int
    """Time of the call that drafted."""
    accept_ns: int
    """Time of the call that took the step's tokens over."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step brought: the path and the target's own one behind it, unless the record ends there."""
        return min(len(self.path) + 1, self.num_left)


def replay(
    drafter: ReplayDrafter,
    traces: Sequence[Trace],
    options: ReplayOptions,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> list[list[ReplayStep]]:
    """Replay traces one after another and return the steps of each.

    Args:
        drafter: what drafts; it has no session yet.
        traces: what was recorded.
        options: how.
        on_tokens: told the tokens of every trace that is through.
    """
    replayed = []
    for session_id, trace in enumerate(traces, start=1):
        drafter.open(session_id, learn=options.learn, cost=options.cost)
        drafter.accept(session_id, trace.prompt)
        replayed.append(_replay_trace(drafter, session_id, trace, options))
        drafter.close(session_id)
        on_tokens(len(trace.output))
    return replayed


def _replay_trace(drafter: ReplayDrafter, session_id: int, trace: Trace, options: ReplayOptions) -> list[ReplayStep]:
    from speculant_graph.draft.session_drafter import DraftOrder

    order = DraftOrder(session_id, options.node_budget, options.seed)
    steps: list[ReplayStep] = []
    position = 0
    while position < len(trace.output):
        start = time.perf_counter_ns()
        (draft,) = drafter.draft([order])
        draft_ns = time.perf_counter_ns() - start
        assert len(draft) <= options.node_budget, "a draft over its budget would be compared unfairly"
        path = agreeing_path(draft, trace.output[position : position + options.node_budget])
        accepted = trace.output[position : position + len(path) + 1]
        if options.learn:
            # All that a record knows of the target: the one token that it wrote.
            nodes = (0, *(node + 1 for node in path))[: len(accepted)]
            drafter.recycle(session_id, nodes, [(token_id,) for token_id in accepted])
        start = time.perf_counter_ns()
        drafter.accept(session_id, accepted)
        accept_ns = time.perf_counter_ns() - start
        num_left = len(trace.output) - position
        steps.append(ReplayStep(draft.parents, draft.path_probabilities, path, num_left, draft_ns, accept_ns))
        position += len(accepted)
    return steps


def agreeing_path(draft: Draft, output: Sequence[TokenId]) -> tuple[int, ...]:
    """Return the nodes of the longest path from the root whose tokens are those the output begins with."""
    depths: list[int] = []  # of nodes that agree; 0 of others
    deepest = -1
    for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
        depth = 1 if parent == 0 else depths[parent - 1] + 1
        is_reached = parent == 0 or depths[parent - 1] > 0
        agrees = is_reached and depth <= len(output) and token_id == output[depth - 1]
        depths.append(depth if agrees else 0)
        if agrees and (deepest < 0 or depth > depths[deepest]):
            deepest = len(depths) - 1
    path: list[int] = []
    while deepest >= 0:
        path.append(deepest)
        deepest = draft.parents[deepest] - 1
    return tuple(reversed(path))
