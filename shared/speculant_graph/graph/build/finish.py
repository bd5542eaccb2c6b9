"""The last passes over a trie: what follows most often, and where the context goes when its first token leaves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from speculant_graph import _core
from speculant_graph.graph.layout import Trie

_SLICE = 1 << 20


def finish_trie(trie: Trie, jobs: int, on_level: Callable[[int], None]) -> tuple[int, ...]:
    """Fill the columns ``best`` and ``link`` and the table ``first`` of a trie whose other columns are complete.

    Args:
        trie: its words are writable here.
        jobs: threads.
        on_level: called with the levels that are done, after each.

    Returns:
        Contexts with a successor, for orders 1 to N.
    """
    _core.fill_unigram_index(trie.level(1), trie.first)
    contexts = []
    with ThreadPoolExecutor(jobs) as threads:
        for length in range(1, trie.max_order + 1):
            level, next_level = trie.level(length), trie.level(length + 1)
            slices = [(start, min(start + _SLICE, len(level) - 1)) for start in range(0, len(level) - 1, _SLICE)]
            if length == 1:
                link = lambda part: _core.link_pairs(level, next_level, trie.first, *part)  # noqa: B023, E731
            else:
                before = trie.level(length - 1)
                link = lambda part: _core.link_children(before, level, next_level, *part)  # noqa: B023, E731
            for _ in threads.map(link, slices):
                pass
            contexts.append(sum(threads.map(lambda part: _core.mark_argmax(level, next_level, *part), slices)))  # noqa: B023
            on_level(length)
    return tuple(contexts)
