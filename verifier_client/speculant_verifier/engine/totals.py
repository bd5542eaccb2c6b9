"""What an engine counts of itself: plain numbers, so that a step pays next to nothing for it."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from speculant_graph.types import DraftSourceName
from speculant_verifier.results import FinishReason, PhaseTimes

_STEP_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
_DRAFT_BOUNDS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3)
_WAIT_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WINDOW = 100
"""Latest requests of a tenant that count; those for which nothing was drafted do not."""
MOST_TENANTS = 1_000
"""Tenants that are remembered; the one that was quiet for longest is forgotten."""


class Histogram:
    """Numbers by size."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Begin empty.

        Args:
            bounds: upper bounds of all buckets but the last, ascending.
        """
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        """How many numbers are in each."""
        self.total = 0.0
        """Sum of all numbers."""

    def observe(self, value: float, count: int = 1) -> None:
        """Count a number, several times if it stands for several."""
        self.buckets[bisect_left(self.bounds, value)] += count
        self.total += value * count


@dataclass(slots=True)
class EngineTotals:
    """What an engine did since it was made."""

    times: PhaseTimes = field(default_factory=PhaseTimes)
    """Where the time of its steps went."""
    num_passes: int = 0
    """Forward passes over drafts."""
    num_rows: int = 0
    """Rows in them."""
    num_nodes: int = 0
    """Nodes in them: roots and drafted ones, without padding."""
    num_drafts: int = 0
    """Drafts verified in them; rows without a draft have none."""
    num_prompt_tokens: int = 0
    """Tokens of prompts whose sequences were admitted."""
    num_from_prefix_cache: int = 0
    """Those of them that an earlier sequence had read."""
    num_tokens: int = 0
    """Tokens emitted."""
    num_steps_without_drafter: int = 0
    """Sequences' steps that had no draft because the drafter did not answer."""
    num_ended: dict[FinishReason, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "error": 0})
    """Sequences that ended, by reason."""
    num_reductions: dict[str, int] = field(default_factory=dict)
    """How often what was reduced, as memory was short."""
    num_reductions_in_force: int = 0
    """How many of them have not been taken back."""
    num_cancelled: int = 0
    """Sequences that their callers gave up."""
    drafted_by_depth: list[int] = field(default_factory=list)
    """Nodes verified at depth 1, 2, ..."""
    accepted_by_depth: list[int] = field(default_factory=list)
    """How many of them were accepted."""
    accepted_by_source: dict[DraftSourceName, int] = field(default_factory=lambda: {"ngrams": 0, "model": 0, "both": 0})
    """Accepted nodes by what proposed them, of drafts that name it: those of a draft model's drafter."""
    draft_times: Histogram = field(default_factory=lambda: Histogram(_DRAFT_BOUNDS_S))
    """Seconds until the drafts of a step were there."""
    pass_times: Histogram = field(default_factory=lambda: Histogram(_STEP_BOUNDS_S))
    """Seconds of passes over drafts."""
    queue_times: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_S))
    """Seconds that sequences waited for a row."""
    first_token_times: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_S))
    """Seconds from a request's arrival to its first token."""
    token_times: Histogram = field(default_factory=lambda: Histogram(_STEP_BOUNDS_S))
    """Seconds between tokens after the first: those that one step emits share the time since the step before."""
    request_times: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_S))
    """Seconds from a request's arrival to its end."""

    def record_pass(self, seconds: float, num_rows: int, num_nodes: int) -> None:
        """Count a pass over drafts.

        Args:
            seconds: its duration.
            num_rows: sequences.
            num_nodes: of all of them, roots included.
        """
        self.num_passes += 1
        self.num_rows += num_rows
        self.num_nodes += num_nodes
        self.pass_times.observe(seconds)


@dataclass(slots=True)
class _Requests:
    counts: deque[tuple[int, int]] = field(default_factory=deque)
    """Per request its tried positions, and how many of them were accepted."""
    num_tried: int = 0
    num_accepted: int = 0


class RollingAcceptance:
    """Share of the tried positions that was accepted, over each tenant's latest requests.

    A position is tried if a token was drafted for it. A request is compared with this share to tell whether its drafts
    failed.
    """

    def __init__(self, window: int = WINDOW, most_tenants: int = MOST_TENANTS) -> None:
        """Begin without any.

        Args:
            window: latest requests of a tenant that count.
            most_tenants: tenants that are remembered.
        """
        self._window, self._most_tenants = window, most_tenants
        self._tenants: OrderedDict[str, _Requests] = OrderedDict()

    def of(self, tenant: str) -> float | None:
        """Return the share, None before the tenant's first request that had drafts."""
        requests = self._tenants.get(tenant)
        return None if requests is None else requests.num_accepted / requests.num_tried

    def add(self, tenant: str, num_tried: int, num_accepted: int) -> float | None:
        """Count a request that has ended, and return the share; one without tried positions does not change it."""
        if not num_tried:
            return self.of(tenant)
        requests = self._tenants.setdefault(tenant, _Requests())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > self._most_tenants:
            self._tenants.popitem(last=False)
        requests.counts.append((num_tried, num_accepted))
        requests.num_tried += num_tried
        requests.num_accepted += num_accepted
        if len(requests.counts) > self._window:
            num_tried, num_accepted = requests.counts.popleft()
            requests.num_tried -= num_tried
            requests.num_accepted -= num_accepted
        return self.of(tenant)
