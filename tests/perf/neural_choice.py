"""Compares fixed and measured choices of a graph's neural model, on a simulated engine whose clock skips its passes.

    python tests/perf/neural_choice.py TRACES... --graph FILE --tokenizer FOLDER [--rows 1,8,32] [--orders 4] [-k 8]

``speculant bench engine-loop`` sleeps during passes, so a run of a few hundred passes takes seconds, and a different
order of the traces alone changes its figures by 2 %. This script adds the time of a pass to the clock instead of
sleeping. It decodes all traces in several orders: with the neural model in every step, in no step, and as the engine's
:class:`~speculant_graph.budget.NeuralChoice` chooses. As the CPU's caches stay warm, drafts take less time than in a
real engine. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

from loguru import logger

from speculant_graph.bench.engine_loop import run_loop
from speculant_graph.bench.texts import Trace, read_workloads
from speculant_graph.budget import CURVES, NeuralChoice
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.factory import load_engine_settings, open_sessions

CHOICES: dict[str, Callable[[NeuralChoice, int], bool]] = {
    "without": lambda choice, num_rows: False,
    "with": lambda choice, num_rows: True,
    "chosen": NeuralChoice.is_neural,
}


class SkippingClock:
    """A clock on which sleeping takes no real time."""

    def __init__(self) -> None:
        self._skipped_s = 0.0
        self._real = time.perf_counter

    def perf_counter(self) -> float:
        return self._real() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        self._skipped_s += max(0.0, seconds)


def measure(graph: Path, traces: Sequence[Trace], num_rows: int, k: int, tokenizer: CorpusTokenizer) -> dict[str, Any]:
    """Decode all traces once; return the figures of ``bench engine-loop``."""
    fingerprint = tokenizer.fingerprint
    settings = load_engine_settings({"graph_path": [graph]}, "neural_choice")
    sessions = open_sessions(settings, fingerprint, most_drafted=k, vocabulary_size=fingerprint.vocabulary_size)
    try:
        curve = CURVES["gptoss-h100"]
        figures = run_loop(sessions, traces, num_rows, k, curve, float("inf")).figures(num_rows, curve)
        return figures | {"neural_share": sessions.counts.neural_steps / max(1, sessions.counts.drafted_steps)}
    finally:
        sessions.close()


def compare(runs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return means over the orders, and the paid speed relative to that without the model, with its standard error."""
    result: dict[str, Any] = {"passes": round(mean(run["without"]["passes"] for run in runs))}
    for name in CHOICES:
        ratios = [run[name]["speedup_paid"] / run["without"]["speedup_paid"] for run in runs]
        error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        means = {key: round(mean(run[name][key] for run in runs), 3) for key in ("speedup_free", "neural_share")}
        result[name] = means | {"paid_over_without": round(mean(ratios), 4), "error": round(error, 4)}
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--graph", type=Path, required=True, help="graph with a neural model")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--orders", type=int, default=4, help="number of orders of the traces")
    parser.add_argument("-k", type=int, default=8)
    options = parser.parse_args(arguments)
    logger.remove()
    tokenizer, results, clock = CorpusTokenizer.load(options.tokenizer, special_tokens="parse"), [], SkippingClock()
    with patch("time.perf_counter", clock.perf_counter), patch("time.sleep", clock.sleep):
        for workload in read_workloads(options.traces, tokenizer, None):
            traces = [trace for trace in workload.traces if len(trace.output) > 1]
            for num_rows in map(int, options.rows.split(",")):
                runs: list[dict[str, dict[str, Any]]] = []
                for order in range(options.orders):
                    shuffled = random.Random(order).sample(traces, len(traces))
                    runs.append({})
                    for name, choice in CHOICES.items():
                        with patch.object(NeuralChoice, "is_neural", choice):
                            runs[-1][name] = measure(options.graph, shuffled, num_rows, options.k, tokenizer)
                results.append({"workload": workload.name, "rows": num_rows, **compare(runs)})
                print(results[-1], flush=True)
    print(json.dumps({"results": results, "orders": options.orders, "k": options.k, "is_simulated": True}))


if __name__ == "__main__":
    main()
