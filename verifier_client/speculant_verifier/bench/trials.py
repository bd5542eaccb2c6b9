"""Interleaved trials: all ways of decoding get the same requests in turn, so that a noisy moment hits all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from speculant_verifier.bench.statistics import Decoded, DecodedRow, DecodingStatistics
from speculant_verifier.bench.workload import BenchRequest

Decode = Callable[[Sequence[BenchRequest]], Decoded]
"""One way of decoding a batch."""


@dataclass(frozen=True, slots=True)
class Trials:
    """What all ways of decoding made of the same requests."""

    requests: Sequence[BenchRequest]
    """In order."""
    runs: Mapping[str, Sequence[Decoded]]
    """By way, one for each batch."""

    def statistics(self, way: str) -> DecodingStatistics:
        """Return what one way came to."""
        return DecodingStatistics(self.runs[way])

    def rows(self, way: str) -> list[DecodedRow]:
        """Return what one way made of each request."""
        return [row for run in self.runs[way] for row in run.rows]

    def is_identical(self, way: str, reference: str) -> bool:
        """Whether a way wrote the records, and where there are none, what another way did."""
        return all(
            row.token_ids == (plain.token_ids if request.forced is None else list(request.forced))
            for request, row, plain in zip(self.requests, self.rows(way), self.rows(reference), strict=True)
        )

    def __add__(self, other: Trials) -> Trials:
        """Return both, of the same ways."""
        runs = {way: (*runs, *other.runs[way]) for way, runs in self.runs.items()}
        return Trials((*self.requests, *other.requests), runs)


def interleaved(
    ways: Mapping[str, Decode], requests: Sequence[BenchRequest], batch: int, tell: Callable[[int, int], None]
) -> Trials:
    """Decode requests in every way; each way comes first, second, ... equally often.

    Args:
        ways: the ways of decoding, at least one.
        requests: at least one.
        batch: requests that are decoded together.
        tell: told how many batches are decoded, and of how many.
    """
    runs: dict[str, list[Decoded]] = {way: [] for way in ways}
    names, batches = list(ways), list(_batches(requests, batch))
    tell(0, 1)
    for index, some in enumerate(batches):
        first = index % len(names)
        for done, way in enumerate((*names[first:], *names[:first]), start=1):
            runs[way].append(ways[way](some))
            tell(index * len(names) + done, len(batches) * len(names))
    return Trials(requests, runs)


def _batches(requests: Sequence[BenchRequest], size: int) -> Iterator[Sequence[BenchRequest]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]
