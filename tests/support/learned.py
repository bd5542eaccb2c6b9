"""Logs of learned text for tests, and what they should hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from speculant_graph.draft.learned_log import LearnedLog
from speculant_graph.types import Fingerprint

IDENTITY = Fingerprint("some/tokenizer", "ab" * 32, 50_000)
DOCUMENTS = [[1, 2, 3], [70_000], [(1 << 24) - 1, 0, 5, 6], [7, 7], [8] * 9]


def opened(
    folder: str | Path, max_tokens: int = 1000, identity: Fingerprint = IDENTITY, sync_s: float = 3600
) -> LearnedLog:
    return LearnedLog(folder, max_tokens=max_tokens, identity=identity, sync_s=sync_s)


def loaded(log: LearnedLog, tenant: str = "") -> list[list[int]]:
    documents = log.load(tenant)
    assert all(document.dtype == np.uint32 and document.size for document in documents)
    return [document.tolist() for document in documents]


def newest(documents: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return what is within a budget, the slow way: drop one token at a time from the front."""
    kept = [list(document) for document in documents]
    while sum(map(len, kept)) > max_tokens:
        kept[0].pop(0)
        if not kept[0]:
            kept.pop(0)
    return kept


def log_file(folder: Path) -> Path:
    (path,) = folder.glob("*.log")
    return path


def written(folder: Path, documents: list[list[int]], max_tokens: int = 1000) -> Path:
    """Return the file of a log that holds these documents of one tenant."""
    with opened(folder, max_tokens) as log:
        assert all(log.append("", document) for document in documents)
    return log_file(folder)
