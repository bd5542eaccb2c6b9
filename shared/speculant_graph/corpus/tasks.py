"""Divides a corpus into tasks of about equal work: some files, or a byte range of one large file.

The token streams of the tasks, concatenated, are the stream of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.source import UTF_8, Source
from speculant_graph.corpus.stream import EncodedPart, encode_sources
from speculant_graph.corpus.tokenize import CUT, CorpusTokenizer

TASK_BYTES = 16_000_000
"""Approximate size of a task, in bytes. Tokenising a task takes some seconds, so a dead worker loses little work."""
_WINDOW_BYTES = 1 << 18
_CONTEXT = 8
"""Number of characters at the start of a window where no cut is made; the first bytes may be a partial character."""


@dataclass(frozen=True, slots=True)
class Task:
    """A unit of encoding work: some files, or a part of one file."""

    sources: tuple[Source, ...]
    """The files; a single source if the task is a part of a file."""
    completes: Source | None = None
    """The whole file if this task is the last of several that split the file; otherwise None."""


def divide_corpus(sources: Sequence[Source], is_cuttable: bool, task_bytes: int = TASK_BYTES) -> Iterator[Task]:
    """Yield the tasks of checked files, in order.

    Plain text and JSON Lines are divided if they are UTF-8 and not gzipped. A large file of any other kind is one task.
    Only some bytes around each border between tasks are read.

    Args:
        sources: the files.
        is_cuttable: whether the tokenizer's texts can be cut
            (:attr:`~speculant_graph.corpus.tokenize.CorpusTokenizer.is_cuttable`).
        task_bytes: approximate bytes of a task.

    Raises:
        CorpusError: a file can't be read.
    """
    group: list[Source] = []
    num_bytes = 0
    for source in sources:
        size = source.size()
        if group and num_bytes + size > task_bytes:
            yield Task(tuple(group))
            group, num_bytes = [], 0
        borders = [0, *_borders(source, size, is_cuttable, task_bytes), size]
        if len(borders) == 2:
            group.append(source)
            num_bytes += size
            continue
        for start, stop in pairwise(borders):
            part = source.reopened()
            part.span = (start, stop)
            yield Task((part,), source if stop == size else None)
    if group:
        yield Task(tuple(group))


def encode_at_once(tokenizer: CorpusTokenizer, task: Task, config: GraphConfig, jobs: int) -> EncodedPart:
    """Encode a task; see :func:`~speculant_graph.corpus.stream.encode_sources` for the arguments."""
    parts = list(encode_sources(tokenizer, task.sources, config, jobs))
    is_part = task.sources[0].span is not None
    return EncodedPart(
        np.concatenate([part.token_ids for part in parts]),
        sum(part.num_separators for part in parts),
        sum(part.num_documents for part in parts),
        sum(part.num_bytes for part in parts),
        () if is_part else tuple(file for part in parts for file in part.files),
    )


def _borders(source: Source, size: int, is_cuttable: bool, task_bytes: int) -> Iterator[int]:
    """Yield the byte offsets at which a file is divided, but none if it is small or can't be divided."""
    is_text = source.format == "text" and is_cuttable
    if not (is_text or source.format == "lines") or source.is_packed or source.encoding != UTF_8:
        return
    before = 0
    for start in range(task_bytes, size - task_bytes // 2, task_bytes):
        window = source.window(start, _WINDOW_BYTES)
        border = _cut_in_text(window) if is_text else _cut_in_lines(window)
        if border is not None and before < start + border < size:
            before = start + border
            yield before


def _cut_in_text(window: bytes) -> int | None:
    # Bytes of partial characters at both ends become surrogates; each encodes to one byte again.
    text = window.decode("utf-8", "surrogateescape")
    cut = CUT.search(text, _CONTEXT)
    return None if cut is None else len(text[: cut.start()].encode("utf-8", "surrogateescape"))


def _cut_in_lines(window: bytes) -> int | None:
    return window.find(b"\n") + 1 or None
