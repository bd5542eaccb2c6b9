"""Trains the mixer's weights on recorded outputs, and evaluates them on unseen outputs.

Usage: ``python tests/models/train_mixer.py --tokenizer NAME NAME=TRACES:GRAPH ...``. A workload is a file of traces for
``speculant bench replay``, and a graph of other text of the same kind. Each workload is replayed four times: with its
graph, with its graph and learned earlier outputs, without the neural model, and without a graph. Every output token is
a training position.

The weights trained on all workloads are written to the package. Each workload is also evaluated with weights trained on
the other workloads only. The last line is JSON with nats per token: without the mixer, with weights that never saw the
workload, and with weights that did.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from speculant_graph._core import Calibration, mixer_losses, train_mixer
from speculant_graph.bench.replay import replay
from speculant_graph.bench.texts import Workload, read_workloads
from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.learning.learned_store import load_calibration
from speculant_graph.draft.mixing import WEIGHTS_FILE
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.ngrams import NgramGraph

NODES = 16


def recorded(workload: Workload, graph: NgramGraph) -> list[Calibration]:
    """Replay a workload in all four ways; return the tables that recorded its positions."""
    tables = []
    without_model = frozenset(("corpus", "session"))
    for layers, config, learns in (
        ([graph], DraftConfig(strategy="tree"), False),
        ([graph], DraftConfig(strategy="tree"), True),
        ([graph], DraftConfig(strategy="tree", sources=without_model), False),
        ([], DraftConfig(strategy="tree"), True),
    ):
        calibration = Calibration()  # without a mixer, so that new weights do not depend on old ones
        if layers and graph.metadata.calibration:
            built = load_calibration(graph.metadata.calibration)
            calibration.restore(built.weights, built.bins)
        calibration.records_examples = True
        replay(SessionDrafter(layers, config, calibration=calibration), workload.traces, NODES, learn=learns)
        tables.append(calibration)
    return tables


def main() -> None:
    """Train, write and evaluate the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="+", metavar="NAME=TRACES:GRAPH")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--limit", type=int, default=60, help="outputs of each workload")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--others", type=Path, help="write weights of all workloads but one to this folder, too")
    arguments = parser.parse_args()
    tokenizer = CorpusTokenizer.load(arguments.tokenizer, None, special_tokens="parse")
    tables = {}
    for each in arguments.workloads:
        name, paths = each.split("=", 1)
        traces, graph = map(Path, paths.split(":", 1))
        [workload] = read_workloads([traces], tokenizer, arguments.limit)
        tables[name] = recorded(workload, NgramGraph.load(graph))
        print(name, "replayed", flush=True)

    def trained(left_out: str | None) -> object:
        calibrations = [each for name, all_of_it in tables.items() if name != left_out for each in all_of_it]
        return train_mixer(calibrations, arguments.seed, arguments.passes, arguments.rate)

    weights = trained(None)
    weights.astype("<f4").tofile(WEIGHTS_FILE)
    figures = {}
    for name, of_name in tables.items():
        of_others = trained(name)
        if arguments.others is not None:
            of_others.astype("<f4").tofile(arguments.others / f"{name}.bin")
        figures[name] = []
        for calibration in of_name:
            (before, unseen), (_, seen) = (mixer_losses(each, calibration) for each in (of_others, weights))
            figures[name].append([round(value, 4) for value in (before, unseen, seen)])
        print(name, figures[name], flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
