"""Times single calls as a server makes them: a fresh context each, and other work in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import CUMULATIVE, UInt32Array
from speculant_graph.graph.ngrams import NgramGraph

_TOUCHED_BYTES = 32_000_000
_TOUCH_EVERY = 16
_WARM_UP_ROUNDS = 50

_FEWEST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that drafts."""

    name: str
    """What it is called in the results."""
    draft: Callable[[list[int]], Sequence[int]]
    """Draft after a context."""
    contexts: UInt32Array
    """Its contexts, one per round, shape ``[num_rounds, length]``; contenders with the same array must agree."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """What was measured."""

    times_us: dict[str, NDArray[np.float64]]
    """Contender -> microseconds of each call, shape ``[num_rounds]``."""
    num_rounds: int
    """Calls per contender."""
    num_different: int
    """Rounds in which contenders with the same context drafted different tokens."""

    def percentile(self, name: str, percent: float, rounds: slice = slice(None)) -> float:
        """Return a percentile of a contender's calls, or of those in some rounds, in microseconds."""
        return round(float(np.percentile(self.times_us[name][rounds], percent)), 2)


def measure_latencies(contenders: Sequence[Contender], seconds: float) -> Latencies:
    """Let all contenders draft in turns, each call timed by itself, for a time or until the contexts are used up."""
    work = _OtherWork()
    for contender in contenders:
        for context in contender.contexts[:_WARM_UP_ROUNDS].tolist():
            contender.draft(context)
    times: dict[str, list[int]] = {contender.name: [] for contender in contenders}
    num_different = num_rounds = 0
    deadline = time.perf_counter() + seconds
    for index in range(min(contender.contexts.shape[0] for contender in contenders)):
        drafts: dict[int, list[int]] = {}
        # Everyone comes first, second, ... equally often.
        first = index % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            context = contender.contexts[index].tolist()
            work.do()
            start = time.perf_counter_ns()
            drafted = contender.draft(context)
            times[contender.name].append(time.perf_counter_ns() - start)
            num_different += drafts.setdefault(id(contender.contexts), list(drafted)) != list(drafted)
        num_rounds += 1
        # Two of them, however long they took: texts are drafted for in turns.
        if time.perf_counter() >= deadline and num_rounds >= _FEWEST_ROUNDS:
            break
    return Latencies(
        {name: np.array(values, np.float64) / 1e3 for name, values in times.items()}, num_rounds, num_different
    )


class _OtherWork:
    """What a server does between two drafts, as far as caches can tell: objects, strings, and large arrays at times."""

    def __init__(self) -> None:
        self._message = {
            f"field-{number}": {"text": f"value {number}", "numbers": list(range(number % 9))} for number in range(60)
        }
        self._array = np.zeros(_TOUCHED_BYTES // 8)
        self._num_calls = 0

    def do(self) -> None:
        decoded = json.loads(json.dumps(self._message))
        names = {f"{self._num_calls}/{name}": name for name in decoded}
        seen = {name for name in names if name.endswith(("1", "3", "7"))} | set(decoded)
        self._message["seen"] = {"text": min(seen), "numbers": [len(names)]}
        if self._num_calls % _TOUCH_EVERY == 0:
            self._array += 1
        self._num_calls += 1


def text_contexts(
    texts: Sequence[UInt32Array], num_contexts: int, length: int, random: np.random.Generator
) -> UInt32Array:
    """Return contexts that end at random places of texts, shape ``[num_contexts, length]``, from the texts in turns.

    Raises:
        ConfigError: a text is shorter than a context.
    """
    if min(text.size for text in texts) < length:
        raise ConfigError(f"a text has fewer than {length} tokens; name a longer one")
    drawn = np.empty((num_contexts, length), np.uint32)
    for number, text in enumerate(texts):
        windows = np.lib.stride_tricks.sliding_window_view(text, length)
        part = drawn[number :: len(texts)]
        part[:] = windows[random.integers(0, windows.shape[0], part.shape[0])]
    return drawn


def graph_contexts(graph: NgramGraph, num_contexts: int, random: np.random.Generator) -> UInt32Array:
    """Return the N tokens before random places of the text that a graph was built from, shape ``[num_contexts, N]``.

    An n-gram is drawn with the probability of its count, which is the same.
    """
    order = graph.max_order
    totals = graph.trie.level(order)[:, CUMULATIVE]
    targets = random.integers(0, int(totals[-1]), num_contexts)
    # numpy.searchsorted would copy the column of a large graph first.
    low, high = np.zeros(num_contexts, np.int64), np.full(num_contexts, totals.size - 1)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        is_below = totals[middle] <= targets
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return np.concatenate([graph.ngrams(order, node, node + 1) for node in low.tolist()])
