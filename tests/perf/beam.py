"""Compares beam search with best-first search, in tokens per step on recorded outputs.

    python tests/perf/beam.py TRACES... --corpus FILE... --tokenizer FOLDER [--nodes 16] [--widths 1,2,4,8] [--limit 20]
    python tests/perf/beam.py TRACES... --draft-model FOLDER [...]

SpecExec (Svirschevski et al. 2024) grows a draft tree by repeatedly adding the most probable node (its algorithm 2;
``shared/native/tree_drafter.cpp``). Beam search grows the tree level by level and keeps ``width`` nodes at every depth.
So its tree has ``nodes / width`` levels. Both use the same probabilities: those of an n-gram graph, or those of a draft
model. The beam is cut from the drafter's largest tree, which contains every node that is more probable than its last
one. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from speculant_graph.bench.replaying import replay
from speculant_graph.bench.texts import read_workloads
from speculant_graph.config import DraftConfig, VerifierConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, SequenceStep
from speculant_verifier.draft_model.factory import open_model_drafter
from speculant_verifier.model import TargetModel

LARGEST = 256
"""Nodes of the tree from which a beam is cut."""
MAX_DEPTH = 16
"""Maximum depth of a draft model's tree, as in SpecExec's paper."""


def beam(tree: Draft, width: int, nodes: int) -> Draft:
    """Return the part of a tree that beam search finds: the most probable children of each level's kept nodes.

    Args:
        tree: a tree with path probabilities.
        width: maximum number of nodes per depth.
        nodes: maximum number of nodes in total.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents, start=1):
        children.setdefault(parent, []).append(node)
    chosen: list[int] = []
    level = [0]
    while level and len(chosen) < nodes:
        below = [child for node in level for child in children.get(node, ())]
        below.sort(key=lambda node: -tree.path_probabilities[node - 1])
        level = below[: min(width, nodes - len(chosen))]
        chosen += [node - 1 for node in level]
    return tree.part(sorted(chosen))


class BeamDrafter(SessionDrafter):
    """Drafts by beam search of one width; width 0 is best-first search."""

    def __init__(self, graph: NgramGraph, width: int) -> None:
        super().__init__(graph, DraftConfig())
        self._width = width

    def draft(self, requests: Sequence[SequenceStep], *arguments: object) -> list[Draft]:  # type: ignore[override]
        """Draft for a batch."""
        if not self._width:
            return super().draft(requests)
        trees = super().draft([SequenceStep(each.session_id, (), LARGEST, each.seed) for each in requests])
        return [beam(tree, self._width, each.node_budget) for tree, each in zip(trees, requests, strict=True)]


class ModelBeamDrafter:
    """Drafts SpecExec's trees with a draft model alone, or cuts a beam from them; one sequence at a time."""

    def __init__(self, folder: str, width: int) -> None:
        config = VerifierConfig(model_name=folder, device="cpu", max_batch_size=1)
        model = TargetModel.load(config)
        draft = DraftConfig(strategy="specexec", k=LARGEST, max_depth=MAX_DEPTH)
        self._drafter = open_model_drafter(model, model, config, draft, None, None)
        self._width = width

    def open(self, session_id: int, **_: object) -> None:
        """Begin a sequence."""
        self._drafter.open(session_id)
        self._token_ids: list[int] = []

    def accept(self, session_id: int, token_ids: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        self._token_ids += token_ids

    def draft(self, requests: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch of one."""
        [each] = requests
        budget = LARGEST if self._width else each.node_budget
        [tree] = self._drafter.draft([SequenceStep(each.session_id, tuple(self._token_ids), budget)])
        return [beam(tree, self._width, each.node_budget) if self._width else tree]

    def close(self, session_id: int) -> None:
        """End a sequence."""
        self._drafter.finish(session_id)


def main(arguments: Sequence[str]) -> None:
    """Replay every file of traces with every width."""
    parser = argparse.ArgumentParser(description="Beam search against best-first search.")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--corpus", nargs="*", type=Path)
    parser.add_argument("--tokenizer", help="by default the draft model's")
    parser.add_argument("--draft-model", help="folder of a model that drafts instead of the corpus's graph")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--widths", default="1,2,4,8")
    parser.add_argument("--limit", type=int, default=20)
    options = parser.parse_args(arguments)
    if not options.draft_model and not (options.corpus and options.tokenizer):
        parser.error("name --corpus and --tokenizer, or --draft-model")
    tokenizer = CorpusTokenizer.load(options.tokenizer or options.draft_model, None, special_tokens="parse")
    if options.draft_model:
        drafter = partial(ModelBeamDrafter, options.draft_model)
    else:
        graph = GraphBuilder(tokenizer_name=options.tokenizer).build_from_files(options.corpus)
        drafter = partial(BeamDrafter, graph)
    found: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for workload in read_workloads(options.traces, tokenizer, options.limit):
        counts[workload.name] = len(workload.traces)
        for width in (0, *map(int, options.widths.split(","))):
            replayed = replay(drafter(width), workload.traces, options.nodes)
            steps = [step for of_trace in replayed for step in of_trace]
            rate = sum(step.num_tokens for step in steps) / len(steps)
            name = f"beam of {width}" if width else "best-first"
            found.setdefault(workload.name, {})[name] = round(rate, 3)
            print(f"{workload.name:16} {name:12} {rate:.3f} tokens a step", flush=True)
    print(json.dumps({"nodes": options.nodes, "traces": counts, "tokens_per_step": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
