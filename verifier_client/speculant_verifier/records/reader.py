"""Reads records back: failures in the order of their ends, and each tenant's replay."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from pathlib import Path

from speculant_verifier.records.lines import FAILURES, RECORD, REPLAY, lines_in
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.records.rotated_lines import files_of


def read_records(folder: str | Path, *, tenant: str | None = None) -> list[RequestRecord]:
    """Return the failures in a folder, the oldest first.

    Lines that are torn, damaged or of another release are left out, with one warning for each file. Files may be
    written and deleted meanwhile.

    Args:
        folder: where the verifier writes its records.
        tenant: whose; None: everybody's.

    Raises:
        OSError: a file can't be read.
    """
    return sorted(_of(tenant, _read(Path(folder), FAILURES)), key=attrgetter("time_s"))


def replay_of(folder: str | Path, tenant: str | None, count: int) -> list[RequestRecord]:
    """Return replay: requests that were no failures, drawn uniformly, in an order that is random, too.

    Args:
        folder: where the verifier writes its records.
        tenant: whose; None: everybody's together.
        count: most requests wanted. Up to ``record.replay`` of them the draw is uniform.

    Raises:
        OSError: a file can't be read.
    """
    return heapq.nsmallest(count, _of(tenant, _read(Path(folder), REPLAY)), key=attrgetter("reservoir_key"))


def _of(tenant: str | None, records: Iterator[RequestRecord]) -> Iterator[RequestRecord]:
    return (record for record in records if tenant is None or record.tenant == tenant)


def _read(folder: Path, prefix: str) -> Iterator[RequestRecord]:
    """Yield the records of all files, one file after another."""
    return chain.from_iterable(lines_in(path, RECORD) for path in files_of(folder, prefix))
