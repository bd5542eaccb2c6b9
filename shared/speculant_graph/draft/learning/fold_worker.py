"""The process of a fold: ``python -m speculant_graph.draft.learning.fold_worker JOB`` counts text into a graph file.

The process reads and writes in its job's folder, and reads older graph files. The process ends when its parent ends,
because its standard input then closes.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from pathlib import Path

from speculant_graph.draft.learning.fold_process import DAMAGED, FoldJob
from speculant_graph.draft.pretraining import pretrain
from speculant_graph.errors import GraphFileError, SpeculantError
from speculant_graph.graph.build.builder import describe_tokens
from speculant_graph.graph.build.combine import merge_graphs
from speculant_graph.graph.build.count import count_tokens, map_tokens
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.graph.ngrams import NgramGraph

MAX_ORDER = 5
"""Longest context in tokens; graphs have the same default."""
_MEMORY = 512_000_000
_LOWEST_PRIORITY = 19


def fold(job: FoldJob) -> None:
    """Count the text, calibrate on it, and merge the counts with the older files.

    Raises:
        GraphFileError: an older file is damaged, or the folder can't be written.
        GraphError: the result would be larger than a graph can be.
    """
    folder = Path(job.folder)
    token_ids: UInt32Array = map_tokens(job.tokens)
    facts = describe_tokens(
        token_ids, job.tokenizer, max_order=MAX_ORDER, num_documents=job.num_documents, document_boundaries=True
    )
    # The newest text predicts best how reliable contexts will be, so a merge keeps its calibration.
    facts = dataclasses.replace(facts, calibration=pretrain(job.tokens, facts, _MEMORY, 1))
    newest = folder / "newest"
    count_tokens(job.tokens, newest, facts, folder, memory=_MEMORY, jobs=1)
    merge_older(job, newest)


def merge_older(job: FoldJob, newest: Path) -> None:
    """Merge the older files of a job with the graph ``newest`` into ``job.graph``; remove ``newest``.

    Raises:
        GraphFileError: an older file is damaged, or the folder can't be written.
        GraphError: the result would be larger than a graph can be.
    """
    for rank, path in reversed(list(enumerate(job.older))):
        before = _checked(path, job)
        plain = NgramGraph(before.trie, dataclasses.replace(before.metadata, calibration=b""))
        output = Path(job.folder) / f"merged-{rank}"
        merge_graphs(plain, NgramGraph.load(newest), output)
        newest.unlink()
        newest = output
    newest.replace(job.graph)


def _checked(path: str, job: FoldJob) -> NgramGraph:
    """Open and verify an older file, because merges would spread damage from file to file."""
    try:
        return NgramGraph.load(path, verify=True)
    except GraphFileError:
        job.damaged.write_text(path, encoding="utf-8", errors="surrogateescape")
        raise


def _end_with_parent() -> None:
    def wait() -> None:
        sys.stdin.buffer.read()  # returns when the parent's end of the pipe closes
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    """Run the job given on the command line; return the exit status."""
    os.umask(0o077)
    os.nice(_LOWEST_PRIORITY)
    _end_with_parent()
    job = FoldJob.from_json(sys.argv[1])
    try:
        fold(job)
    except SpeculantError as error:
        sys.stderr.write(f"{error}\n")
        return DAMAGED if job.damaged.exists() else 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # the thread that reads standard input would block the interpreter's exit
