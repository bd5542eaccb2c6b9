"""Measures the time of drafts and lookups between other work, which leaves caches cold, as in a server.

    python tests/perf/draft.py [--graph FILE --held TEXT] [--budget 16] [--batch 32] [--drafts 1000] [--learned 200000]

It measures drafts for sessions by strategy, in turns, for a batch in one call, and after much learned text. It measures
ten greedy tokens from a graph and from a dict of dicts of the same tokens. It also measures three processes that open
and share one file. By default the graph holds the first half of two million words of Python's standard library.
Sessions and contexts are pieces of the other half. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from speculant_graph.bench.build import Counts, count_by_iterators
from speculant_graph.bench.texts import words_of_standard_library
from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.machine import describe_machine
from speculant_graph.types import SequenceStep

STRATEGIES = ("tree", "adaptive", "greedy", "sampling")
WARM_UP, FEWEST_SESSIONS, LEARNED_PIECE = 64, 32, 500
SHORTEST_PROMPT, LONGEST_PROMPT, MOST_ACCEPTED = 500, 2_000, 4
COUNTED_TOKENS, GREEDY_TOKENS, CONTEXT_TOKENS, PROCESSES = 1_000_000, 10, 16, 3
OPEN = """
import sys, time
from speculant_graph.graph.ngrams import NgramGraph
start = time.perf_counter()
graph = NgramGraph.load(sys.argv[1])
print(1e3 * (time.perf_counter() - start), flush=True)
graph.trie.words[::1024].sum()
print(flush=True)
sys.stdin.read()
"""


class OtherWork:
    """Simulates a server's work between two drafts in its effect on caches: objects, strings, at times large arrays."""

    def __init__(self) -> None:
        self.message = {f"field-{index}": {"numbers": list(range(index % 9))} for index in range(60)}
        self.array = np.zeros(4_000_000)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        json.loads(json.dumps(self.message))
        if self.calls % 16 == 0:
            self.array += 1


class Sessions:
    """A drafter with sessions on pieces of a text, and the times of its calls."""

    def __init__(self, drafter: SessionDrafter, text: Sequence[int], batch: int, budget: int) -> None:
        self.drafter, self.text, self.batch, self.budget = drafter, text, batch, budget
        self.random = np.random.default_rng(0)
        self.ends = []
        self.ns: list[int] = []
        for session_id in range(max(FEWEST_SESSIONS, batch)):
            size = int(self.random.integers(SHORTEST_PROMPT, LONGEST_PROMPT + 1))
            start = int(self.random.integers(0, len(text) - size))
            drafter.open(session_id)
            drafter.accept(session_id, text[start : start + size])
            self.ends.append(start + size)

    def step(self, turn: int, work: Callable[[], None]) -> None:
        """Accept one to four tokens of each session of the batch, and draft for all of them, after other work."""
        session_ids = [(turn + offset) % len(self.ends) for offset in range(self.batch)]
        for session_id in session_ids:
            start = self.ends[session_id]
            end = start + int(self.random.integers(1, MOST_ACCEPTED + 1))
            self.drafter.accept(session_id, self.text[start:end])
            self.ends[session_id] = end if end < len(self.text) else 0
        requests = [SequenceStep(session_id, (), self.budget) for session_id in session_ids]
        work()
        start_ns = time.perf_counter_ns()
        self.drafter.draft(requests)
        self.ns.append(time.perf_counter_ns() - start_ns)


def take_turns(steps: Sequence[Callable[[int], None]], rounds: int) -> None:
    """Run all steps in rotating order: each is first, second, ... equally often."""
    for turn in range(WARM_UP + rounds):
        for offset in range(len(steps)):
            steps[(turn + offset) % len(steps)](turn)


def us(times_ns: Sequence[int], percent: float = 50) -> float:
    """Return a percentile in microseconds, without the warm-up."""
    return round(float(np.percentile(times_ns[WARM_UP:], percent)) / 1e3, 2)


def measure_sessions(graph: NgramGraph, held: Sequence[int], arguments: argparse.Namespace) -> dict[str, float]:
    """Measure drafts for sessions by every strategy."""
    learned = LearnedStore(DraftConfig().max_learned_tokens)
    for start in range(0, arguments.learned, LEARNED_PIECE):
        learned.memory("").core.add(np.array(held[start : start + LEARNED_PIECE], np.int64))

    def sessions(name: str, batch: int = 1, store: LearnedStore | None = None) -> Sessions:
        drafter = SessionDrafter(graph, DraftConfig(strategy=name, k=arguments.budget), learned=store)
        return Sessions(drafter, held[arguments.learned :], batch, arguments.budget)

    alone = {name: sessions(name) for name in STRATEGIES} | {"learned": sessions("tree", store=learned)}
    many, work = sessions("tree", arguments.batch), OtherWork()
    take_turns([lambda turn, each=each: each.step(turn, work) for each in alone.values()], arguments.drafts)
    take_turns([lambda turn: many.step(turn, work)], arguments.drafts // 8)
    figures = {f"{name}_p{percent}_us": us(each.ns, percent) for name, each in alone.items() for percent in (50, 99)}
    per_draft = us(many.ns) / arguments.batch
    return figures | {"batch_p50_us": us(many.ns), "batch_ratio": round(per_draft / figures["tree_p50_us"], 3)}


def draft_from_dict(contexts: Counts, max_order: int, context: Sequence[int]) -> list[int]:
    """Draft the most frequent successors like the graph: start with the longest known context, and keep its order.

    Among equal counts, the lowest id wins.
    """
    tokens = list(context[-max_order:])
    num_given = len(tokens)
    while len(tokens) < num_given + GREEDY_TOKENS:
        orders = range(min(max_order, len(tokens)), 0, -1)
        order = next((order for order in orders if tuple(tokens[-order:]) in contexts), 0)
        if not order:
            break
        while (successors := contexts.get(tuple(tokens[-order:]))) and len(tokens) < num_given + GREEDY_TOKENS:
            most = max(successors.values())
            tokens.append(min(token for token, count in successors.items() if count == most))
    return tokens[num_given:]


def greedy(generator: DraftGenerator, context: Sequence[int]) -> Sequence[int]:
    """Draft from a graph."""
    return generator.draft(context, GREEDY_TOKENS, "greedy").token_ids


def measure_greedy(
    graphs: dict[str, NgramGraph], plain: Counts, held: Sequence[int], rounds: int
) -> dict[str, float | bool]:
    """Draft ten tokens after the same contexts from graphs, and from a dict with the first graph's contents."""
    random, work = np.random.default_rng(0), OtherWork()
    drafters: dict[str, Callable[[Sequence[int]], Sequence[int]]] = {
        name: partial(greedy, DraftGenerator(graph)) for name, graph in graphs.items()
    }
    first = next(iter(graphs))
    drafters["dict"] = lambda context: draft_from_dict(plain, graphs[first].max_order, context)
    starts = random.integers(0, len(held) - CONTEXT_TOKENS + 1, WARM_UP + rounds).tolist()
    contexts = [list(held[start : start + CONTEXT_TOKENS]) for start in starts]
    times: dict[str, list[int]] = {name: [] for name in drafters}
    drafts: dict[str, list[tuple[int, ...]]] = {name: [] for name in drafters}

    def step(name: str, turn: int) -> None:
        work()
        start_ns = time.perf_counter_ns()
        draft = drafters[name](contexts[turn])
        times[name].append(time.perf_counter_ns() - start_ns)
        drafts[name].append(tuple(draft))

    take_turns([lambda turn, name=name: step(name, turn) for name in drafters], rounds)
    figures: dict[str, float | bool] = {
        f"{name}_p{percent}_us": us(times[name], percent) for name in drafters for percent in (50, 99)
    }
    ratio = round(us(times["dict"]) / us(times[first]), 2)
    return figures | {"dict_ratio": ratio, "identical": drafts[first] == drafts["dict"]}


def share(path: Path) -> dict[str, float]:
    """Open a file in several new processes at once; return the time and each process's proportional bytes."""
    with ExitStack() as stack:
        opened_ms, children = [], []
        for _ in range(PROCESSES):
            command = [sys.executable, "-c", OPEN, str(path)]
            child = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            children.append(child)
            stack.callback(child.kill)
            opened_ms.append(float(child.stdout.readline()))
            child.stdout.readline()
        maps = [psutil.Process(child.pid).memory_maps(grouped=False) for child in children]
    sizes = [sum(region.pss for region in each if region.path == str(path.resolve())) for each in maps]
    return {"open_ms": round(float(np.median(opened_ms)), 3), "pss_bytes_per_process": int(np.mean(sizes))}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", type=Path, help="measure this graph file, too")
    parser.add_argument("--held", type=Path, help="text that it did not count, with --graph")
    parser.add_argument("--budget", type=int, default=16, help="most nodes of a draft")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a call for many")
    parser.add_argument("--drafts", type=int, default=1_000, help="timed drafts of each kind")
    parser.add_argument("--learned", type=int, default=200_000, help="tokens that were learned before")
    arguments = parser.parse_args()
    words, fingerprint = words_of_standard_library(2 * COUNTED_TOKENS)
    counted, held = words[:COUNTED_TOKENS], words[COUNTED_TOKENS:]
    small = build_from_token_ids(counted, fingerprint)
    plain = count_by_iterators(counted, small.max_order)
    gc.collect()
    gc.freeze()  # the dict's millions of objects must not slow the other work's garbage collections down
    figures = measure_greedy({"lookup": small}, plain, held, arguments.drafts)
    figures["seen_dict_ratio"] = measure_greedy({"lookup": small}, plain, counted, arguments.drafts)["dict_ratio"]
    with tempfile.TemporaryDirectory() as folder:
        path, graph = arguments.graph, small
        if path is None:
            path = Path(folder) / "graph.pkl"
            small.save(path)
        else:
            graph = NgramGraph.load(path)
            if arguments.held is not None:
                tokenizer = CorpusTokenizer.load(graph.metadata.tokenizer.name)
                held = tokenizer.encode(arguments.held.read_text(encoding="utf-8"))
            own = measure_greedy({"lookup": graph}, {}, held, arguments.drafts)
            figures |= {name: own[name] for name in ("lookup_p50_us", "lookup_p99_us")}
        figures |= share(path)
    figures |= measure_sessions(graph, held, arguments)
    for key, value in figures.items():
        print(f"{key:<26} {value}")
    print(json.dumps({**figures, "machine": describe_machine(), "command": sys.argv}))


if __name__ == "__main__":
    main()
