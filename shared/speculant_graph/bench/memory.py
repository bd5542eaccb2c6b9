"""What it costs to open one graph file in several processes at once."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.errors import GraphFileError

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Sharing:
    """Processes that had the same file mapped and had read all of it; sizes are of this mapping alone."""

    num_processes: int
    """How many there were at once."""
    open_ms: float
    """Median time to open the file, each process being new; imports are not counted."""
    pss_bytes: int
    """Mean proportional size per process: pages shared by n processes count 1/n."""
    rss_bytes: int
    """Mean resident size per process."""
    private_dirty_bytes: int
    """Mean size per process of pages that it changed."""


def measure_sharing(path: Path, num_processes: int) -> Sharing:
    """Open a file in new processes, one after another, and weigh it when all have read every page.

    The calling process must not have it open itself. The processes end with this call.

    Raises:
        GraphFileError: the file can't be opened; the process has said why.
    """
    import psutil

    command = [sys.executable, "-m", "speculant_graph.bench.memory", str(path)]
    opened_ms: list[float] = []
    with ExitStack() as stack:
        children = []
        for _ in range(num_processes):
            # A group of its own: Ctrl-C is for this process, which ends the others.
            child = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
            )
            stack.callback(child.kill)
            children.append(child)
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise GraphFileError(f"{path} can't be opened in a new process; see its message above")
            opened_ms.append(float(line))
        resolved = str(path.resolve())
        maps = [
            region
            for child in children
            for region in psutil.Process(child.pid).memory_maps(grouped=False)
            if region.path == resolved
        ]
    return Sharing(
        num_processes,
        statistics.median(opened_ms),
        sum(region.pss for region in maps) // num_processes,
        sum(region.rss for region in maps) // num_processes,
        sum(region.private_dirty for region in maps) // num_processes,
    )


def main(arguments: Sequence[str]) -> None:
    """Be one of the processes: open the file, read every page, say how long opening took, wait to be ended."""
    from speculant_graph.graph.store import load_graph

    start = time.perf_counter()
    graph = load_graph(arguments[0])
    milliseconds = 1e3 * (time.perf_counter() - start)
    graph.trie.words[:: _PAGE_BYTES // graph.trie.words.itemsize].sum()
    sys.stdout.write(f"{milliseconds}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
