"""An engine's counters, which are plain numbers, so that counting takes next to no time."""

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
"""Number of a tenant's latest requests over which acceptance is computed; requests without drafts do not count."""
MOST_TENANTS = 1_000
"""Maximum number of tenants whose acceptance is remembered. If there are more tenants, the least recently active one is
forgotten."""


class Histogram:
    """Histogram of observed values."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Begin empty.

        Args:
            bounds: upper bounds of all buckets but the last, ascending.
        """
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        """Number of observed values in each bucket."""
        self.total = 0.0
        """Sum of all observed values."""

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value ``count`` times."""
        self.buckets[bisect_left(self.bounds, value)] += count
        self.total += value * count


@dataclass(slots=True)
class EngineTotals:
    """Counts and times of an engine since it was created."""

    times: PhaseTimes = field(default_factory=PhaseTimes)
    """Total duration of all steps, by phase."""
    num_passes: int = 0
    """Number of forward passes over drafts."""
    num_rows: int = 0
    """Number of rows (sequences), summed over the forward passes over drafts."""
    num_nodes: int = 0
    """Number of tree nodes, summed over the forward passes: roots and drafted nodes, without padding."""
    num_drafts: int = 0
    """Number of verified drafts; empty drafts do not count."""
    num_prompt_tokens: int = 0
    """Number of prompt tokens of admitted sequences."""
    num_from_prefix_cache: int = 0
    """Number of prompt tokens whose keys and values came from the prefix cache."""
    num_tokens: int = 0
    """Tokens emitted."""
    num_steps_without_drafter: int = 0
    """Number of steps, counted per sequence, without a draft because the drafter did not answer or opened no
    session."""
    num_ended: dict[FinishReason, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "error": 0})
    """Number of ended sequences, by finish reason."""
    num_reductions: dict[str, int] = field(default_factory=dict)
    """Number of reductions due to lack of memory, by reduced quantity such as drafted nodes."""
    num_reductions_in_force: int = 0
    """Number of memory reductions that are still in force."""
    num_cancelled: int = 0
    """Number of sequences that their callers cancelled."""
    drafted_by_depth: list[int] = field(default_factory=list)
    """Number of verified nodes at depth 1, 2, ..."""
    accepted_by_depth: list[int] = field(default_factory=list)
    """Number of accepted nodes at depth 1, 2, ..."""
    accepted_by_source: dict[DraftSourceName, int] = field(default_factory=lambda: {"ngrams": 0, "model": 0, "both": 0})
    """Number of accepted nodes by draft source; only drafters with a draft model name sources."""
    draft_times: Histogram = field(default_factory=lambda: Histogram(_DRAFT_BOUNDS_S))
    """Histogram of the seconds per step spent on getting drafts."""
    pass_times: Histogram = field(default_factory=lambda: Histogram(_STEP_BOUNDS_S))
    """Histogram of the seconds per forward pass over drafts."""
    queue_times: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_S))
    """Histogram of the seconds that sequences waited for a row of the KV cache."""
    first_token_times: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_S))
    """Histogram of the seconds from a request's arrival to its first token."""
    token_times: Histogram = field(default_factory=lambda: Histogram(_STEP_BOUNDS_S))
    """Histogram of the seconds per token after the first. The tokens of one step share the time since the sequence's
    previous output equally."""
    request_times: Histogram = field(default_factory=lambda: Histogram(_WAIT_BOUNDS_S))
    """Histogram of the seconds from a request's arrival to its end."""

    def record_pass(self, seconds: float, num_rows: int, num_nodes: int) -> None:
        """Count a forward pass over drafts and record its duration.

        Args:
            seconds: duration of the pass.
            num_rows: number of sequences.
            num_nodes: nodes of all sequences, including roots.
        """
        self.num_passes += 1
        self.num_rows += num_rows
        self.num_nodes += num_nodes
        self.pass_times.observe(seconds)


@dataclass(slots=True)
class _Requests:
    counts: deque[tuple[int, int]] = field(default_factory=deque)
    """Numbers of tried and accepted positions, for each of a tenant's latest requests."""
    num_tried: int = 0
    num_accepted: int = 0


class RollingAcceptance:
    """Acceptance rate of each tenant's latest requests: the accepted share of the tried positions.

    A position is tried if a drafted token was verified there. Records compare a request's own acceptance rate with its
    tenant's rate, to decide whether the request's drafts failed.
    """

    def __init__(self, window: int = WINDOW, most_tenants: int = MOST_TENANTS) -> None:
        """Begin without requests.

        Args:
            window: number of a tenant's latest requests that count.
            most_tenants: maximum number of tenants to remember.
        """
        self._window, self._most_tenants = window, most_tenants
        self._tenants: OrderedDict[str, _Requests] = OrderedDict()

    def of(self, tenant: str) -> float | None:
        """Return the tenant's acceptance rate; None before the tenant's first request with drafts."""
        requests = self._tenants.get(tenant)
        return None if requests is None else requests.num_accepted / requests.num_tried

    def add(self, tenant: str, num_tried: int, num_accepted: int) -> float | None:
        """Count an ended request and return the tenant's acceptance rate.

        A request without tried positions does not change the acceptance rate.
        """
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
