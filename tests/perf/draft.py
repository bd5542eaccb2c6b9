"""How long drafts for sessions take: by strategy, for a batch in one call, and with much learned before.

    python tests/perf/draft.py [--graph FILE --held TEXT] [--budget 16] [--batch 32] [--drafts 1000] [--learned 200000]

Each strategy is measured twice: in turns with the others and with other work in between, which leaves cold caches, and
by itself ("tight"). By default the graph is of the first two thirds of the words of Python's standard library, and the
sessions are pieces of the rest. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from speculant_graph.bench.texts import words_of_standard_library
from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.learning.store import LearnedStore
from speculant_graph.draft.session_drafter import DraftRequest, SessionDrafter
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.machine import describe_machine

STRATEGIES = ("tree", "adaptive", "greedy", "sampling")
WARM_UP, FEWEST_SESSIONS, LEARNED_PIECE = 64, 32, 500
SHORTEST_PROMPT, LONGEST_PROMPT, MOST_ACCEPTED = 500, 2_000, 4


class OtherWork:
    """What a server does between two drafts, as far as caches can tell: objects, strings, and at times large arrays."""

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
    """A drafter, sessions that are pieces of a text, and the times of its calls."""

    def __init__(self, drafter: SessionDrafter, text: Sequence[int], number: int, batch: int, budget: int) -> None:
        self.drafter, self.text, self.batch, self.budget = drafter, text, batch, budget
        self.random = np.random.default_rng(0)
        self.ends = []
        self.accept_ns: list[int] = []
        self.accepted = 0
        self.draft_ns: list[int] = []
        self.nodes: list[int] = []
        for session_id in range(number):
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
            portion = self.text[start:end]
            self.ends[session_id] = end if end < len(self.text) else 0
            work()
            start_ns = time.perf_counter_ns()
            self.drafter.accept(session_id, portion)
            self.accept_ns.append(time.perf_counter_ns() - start_ns)
            self.accepted += len(portion)
        orders = [DraftRequest(session_id, self.budget) for session_id in session_ids]
        work()
        start_ns = time.perf_counter_ns()
        drafts = self.drafter.draft(orders)
        self.draft_ns.append(time.perf_counter_ns() - start_ns)
        self.nodes += [len(draft) for draft in drafts]

    def us(self, percent: float) -> float:
        """Return a percentile of the calls that drafted, the first ones left out, in microseconds."""
        return round(float(np.percentile(self.draft_ns[WARM_UP:], percent)) / 1e3, 2)


def take_turns(all_sessions: Sequence[Sessions], rounds: int, work: Callable[[], None]) -> None:
    """Let all drafters step in turns: each is first, second, ... equally often."""
    for turn in range(WARM_UP + rounds):
        for offset in range(len(all_sessions)):
            all_sessions[(turn + offset) % len(all_sessions)].step(turn, work)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", type=Path, help="draft from this graph file")
    parser.add_argument("--held", type=Path, help="text that it did not count, with --graph")
    parser.add_argument("--budget", type=int, default=16, help="most nodes of a draft")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a call for many")
    parser.add_argument("--drafts", type=int, default=1_000, help="timed drafts of each kind")
    parser.add_argument("--learned", type=int, default=200_000, help="tokens that were learned before")
    arguments = parser.parse_args()
    if arguments.graph is None:
        words, fingerprint = words_of_standard_library()
        graph = build_from_token_ids(words[: len(words) * 2 // 3], fingerprint)
        held = words[len(words) * 2 // 3 :]
    else:
        graph = NgramGraph.load(arguments.graph)
        tokenizer = CorpusTokenizer.load(graph.metadata.tokenizer.name)
        held = tokenizer.encode(arguments.held.read_text(encoding="utf-8"))
    configs = {name: DraftConfig(strategy=name, k=arguments.budget) for name in STRATEGIES}
    learned = LearnedStore(configs["tree"].max_learned_tokens)
    for start in range(0, arguments.learned, LEARNED_PIECE):
        learned.memory("").core.add(np.array(held[start : start + LEARNED_PIECE], np.int64))
    text, number = held[arguments.learned :], max(FEWEST_SESSIONS, arguments.batch)

    def sessions(name: str, batch: int = 1, store: LearnedStore | None = None) -> Sessions:
        return Sessions(SessionDrafter(graph, configs[name], learned=store), text, number, batch, arguments.budget)

    cold = {name: sessions(name) for name in STRATEGIES} | {"learned": sessions("tree", store=learned)}
    many = sessions("tree", arguments.batch)
    tight = {name: sessions(name) for name in STRATEGIES}
    gc.collect()
    gc.freeze()
    work = OtherWork()
    take_turns(list(cold.values()), arguments.drafts, work)
    take_turns([many], arguments.drafts // 8, work)
    for each in tight.values():
        take_turns([each], arguments.drafts, lambda: None)
    figures = {"nodes": round(float(np.mean(cold["tree"].nodes)), 2), "batch": arguments.batch}
    figures |= {f"{name}_p{percent}_us": each.us(percent) for name, each in cold.items() for percent in (50, 99)}
    figures |= {f"tight_{name}_p50_us": each.us(50) for name, each in tight.items()}
    figures |= {
        "batch_p50_us": many.us(50),
        "batch_ratio": round(many.us(50) / arguments.batch / cold["tree"].us(50), 3),
    }
    for name, each in (("learn", cold["tree"]), ("tight_learn", tight["tree"])):
        figures[f"{name}_us_per_token"] = round(sum(each.accept_ns) / each.accepted / 1e3, 3)
    for key, value in figures.items():
        print(f"{key:<26} {value}")
    print(json.dumps({**figures, "machine": describe_machine(), "command": sys.argv}))


if __name__ == "__main__":
    main()
