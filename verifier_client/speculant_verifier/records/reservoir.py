"""A uniform sample of each tenant's requests in files that are only appended to.

Every request has a random key, and the sample is those with the smallest keys (Efraimidis and Spirakis, 2006, with
equal weights). So a request whose key is not among the smallest so far will never be in it and is not written. Those
that smaller ones displace later stay in their files unread: of n requests about size * (1 + ln(n / size)) are written.

Several processes may write: each leaves out only what can't be in the sample, so the files of all of them hold it.
Where files are deleted to make room, their keys count no more, and later requests take their places.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from speculant_verifier.records.lines import REPLAY, lines_in
from speculant_verifier.records.rotated_lines import files_of


@dataclass(frozen=True, slots=True)
class _Key:
    """What a line says that matters here."""

    tenant: str
    reservoir_key: float
    schema_version: Literal[1]


_KEY = TypeAdapter(_Key)


class Reservoir:
    """Says which requests join the samples of their tenants; one thread at a time."""

    def __init__(self, folder: Path, size: int) -> None:
        """Read the keys of the requests in a folder.

        Args:
            folder: where the files are.
            size: requests of each tenant's sample, at least 1.

        Raises:
            OSError: a file can't be read.
        """
        self._size = size
        self._keys = {path: list(lines_in(path, _KEY)) for path in files_of(folder, REPLAY)}
        self._smallest: dict[str, list[float]] = {}
        self._count_again()

    def takes(self, tenant: str, key: float) -> bool:
        """Whether a request is among the sample so far, of what has not been deleted."""
        deleted = [each for each in self._keys if not each.exists()]
        if deleted:
            for each in deleted:
                del self._keys[each]
            self._count_again()
        smallest = self._smallest.get(tenant, [])
        return len(smallest) < self._size or key < -smallest[0]

    def add(self, path: Path, tenant: str, key: float) -> None:
        """Note that a request was written to a file."""
        self._keys.setdefault(path, []).append(_Key(tenant, key, 1))
        self._push(tenant, key)

    def _count_again(self) -> None:
        self._smallest = {}
        for keys in self._keys.values():
            for each in keys:
                self._push(each.tenant, each.reservoir_key)

    def _push(self, tenant: str, key: float) -> None:
        smallest = self._smallest.setdefault(tenant, [])  # a heap of negative keys: the largest key is in front
        if len(smallest) < self._size:
            heapq.heappush(smallest, -key)
        else:
            heapq.heappushpop(smallest, -key)
