"""How long ten greedy tokens take from a graph and from a dict of dicts of the same tokens; opening a file, sharing it.

    python tests/perf/lookup.py [--graph FILE --held TEXT] [--tokens 1000000] [--seconds 20]

By default the words of Python's standard library are counted, and contexts are from what follows them. The last line is
a JSON object.
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
from pathlib import Path

import numpy as np
import psutil
from draft import OtherWork

from speculant_graph.bench.build import Counts, count_by_iterators
from speculant_graph.bench.texts import words_of_standard_library
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.machine import describe_machine

K, CONTEXT_TOKENS, PROCESSES, WARM_UP = 10, 16, 3, 50
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


def draft_from_dict(contexts: Counts, max_order: int, context: Sequence[int]) -> list[int]:
    """Draft the most frequent successors, as the graph does: the longest known context first, its order kept.

    Of equal counts the lowest id is taken.
    """
    tokens = list(context[-max_order:])
    num_given = len(tokens)
    while len(tokens) < num_given + K:
        orders = range(min(max_order, len(tokens)), 0, -1)
        order = next((order for order in orders if tuple(tokens[-order:]) in contexts), 0)
        if not order:
            break
        while (successors := contexts.get(tuple(tokens[-order:]))) and len(tokens) < num_given + K:
            most = max(successors.values())
            tokens.append(min(token for token, count in successors.items() if count == most))
    return tokens[num_given:]


def measure(
    drafters: dict[str, Callable[[list[int]], Sequence[int]]], contexts: list[list[int]], seconds: float
) -> tuple[dict[str, list[int]], int]:
    """Let all draft for the same contexts in turns; return nanoseconds of each call, and contexts they differ for."""
    work, names = OtherWork(), list(drafters)
    taken_ns: dict[str, list[int]] = {name: [] for name in names}
    differing = 0
    deadline_s = time.perf_counter() + seconds
    for index, context in enumerate(contexts):
        drafts = []
        for offset in range(len(names)):
            name = names[(index + offset) % len(names)]
            work()
            start_ns = time.perf_counter_ns()
            draft = drafters[name](context)
            taken_ns[name].append(time.perf_counter_ns() - start_ns)
            drafts.append(list(draft))
        differing += drafts[1:] != drafts[:-1]
        if time.perf_counter() >= deadline_s and index > 2 * WARM_UP:
            break
    return {name: times[WARM_UP:] for name, times in taken_ns.items()}, differing


def share(path: Path) -> tuple[float, int]:
    """Open a file in new processes at once; return milliseconds to open it and its proportional bytes in each."""
    with ExitStack() as stack:
        opened_ms, sizes, children = [], [], []
        for _ in range(PROCESSES):
            command = [sys.executable, "-c", OPEN, str(path)]
            child = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            children.append(child)
            stack.callback(child.kill)
            opened_ms.append(float(child.stdout.readline()))
            child.stdout.readline()
        for child in children:
            maps = psutil.Process(child.pid).memory_maps(grouped=False)
            sizes.append(sum(region.pss for region in maps if region.path == str(path.resolve())))
    return float(np.median(opened_ms)), int(np.mean(sizes))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", type=Path, help="measure this graph file, too")
    parser.add_argument("--held", type=Path, help="text for contexts that the graph did not count")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens that are counted by both")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure each")
    arguments = parser.parse_args()
    words, fingerprint = words_of_standard_library(2 * arguments.tokens)
    counted, held = words[: arguments.tokens], words[arguments.tokens :]
    small = build_from_token_ids(counted, fingerprint)
    random = np.random.default_rng(0)

    def contexts_of(text: Sequence[int]) -> list[list[int]]:
        starts = random.integers(0, len(text) - CONTEXT_TOKENS + 1, 20_000).tolist()
        return [list(text[start : start + CONTEXT_TOKENS]) for start in starts]

    def greedy(graph: NgramGraph) -> Callable[[list[int]], Sequence[int]]:
        generator = DraftGenerator(graph)
        return lambda context: generator.draft(context, K, "greedy").token_ids

    plain = count_by_iterators(counted, small.max_order)
    drafters = {"graph": greedy(small), "dict": lambda context: draft_from_dict(plain, small.max_order, context)}
    gc.collect()
    gc.freeze()  # the dict's millions of objects must not slow the other work's garbage collections down
    taken_ns, differing = measure(drafters, contexts_of(held), arguments.seconds)
    seen_ns, _ = measure(drafters, contexts_of(counted), arguments.seconds)
    p50 = {name: float(np.percentile(times, 50)) for name, times in taken_ns.items()}
    with tempfile.TemporaryDirectory() as folder:
        path, measured_ns = arguments.graph, taken_ns["graph"]
        if path is None:
            path = Path(folder) / "graph.pkl"
            small.save(path)
        else:
            graph = NgramGraph.load(path)
            if arguments.held is not None:
                tokenizer = CorpusTokenizer.load(graph.metadata.tokenizer.name)
                held = tokenizer.encode(arguments.held.read_text(encoding="utf-8"))
            measured_ns = measure({"graph": greedy(graph)}, contexts_of(held), arguments.seconds)[0]["graph"]
        open_ms, pss_bytes = share(path)
    figures = {
        "p50_us": round(float(np.percentile(measured_ns, 50)) / 1e3, 2),
        "p99_us": round(float(np.percentile(measured_ns, 99)) / 1e3, 2),
        "dict_p50_us": round(p50["dict"] / 1e3, 2),
        "dict_ratio": round(p50["dict"] / p50["graph"], 2),
        "seen_dict_ratio": round(float(np.median(seen_ns["dict"]) / np.median(seen_ns["graph"])), 2),
        "identical": differing == 0,
        "open_ms": round(open_ms, 3),
        "pss_bytes_per_process": pss_bytes,
        "machine": describe_machine(),
        "command": sys.argv,
    }
    for key, value in figures.items():
        print(f"{key:<24} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
