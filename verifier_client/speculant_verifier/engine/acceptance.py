"""How well drafts went lately, tenant by tenant: what a request is compared with to tell whether its drafts failed."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

WINDOW = 100
"""Latest requests of a tenant that count; those for which nothing was drafted do not."""
MOST_TENANTS = 1_000
"""Tenants that are remembered; the one that was quiet for longest is forgotten."""


@dataclass(slots=True)
class _Requests:
    counts: deque[tuple[int, int]] = field(default_factory=deque)
    """Per request its tried positions, and how many of them were accepted."""
    num_tried: int = 0
    num_accepted: int = 0


class RollingAcceptance:
    """Share of the tried positions that was accepted, over each tenant's latest requests.

    A position is tried if a token was drafted for it.
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

    def add(self, tenant: str, num_tried: int, num_accepted: int) -> None:
        """Count a request that has ended; one without tried positions says nothing."""
        if not num_tried:
            return
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
