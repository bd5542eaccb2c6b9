"""A draft model beside n-grams and alone, on text that one of them, or neither, knows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.bench.progress import BenchProgress
from speculant_graph.bench.report import ReportTable
from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.bench.engine_decoding import EngineDecoding
from speculant_verifier.bench.trials import Trials, interleaved
from speculant_verifier.bench.workload import BenchRequest
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import beginnings_of, draft_files, training_files
from speculant_verifier.model import TargetModel

if TYPE_CHECKING:
    from speculant_verifier.bench.adapter import BenchAdapterSettings

PLAIN, NGRAMS, MODEL, BOTH = "plain", "tree", "model", "tree with the model"
_TURN = 2
"""Requests of each row in a turn; at its end rows wait for the slowest request."""


def measure_ways(settings: BenchAdapterSettings, folder: Path, progress: BenchProgress) -> dict[str, Any]:
    """Decode prompts of every kind in every way and return the figures, ready for JSON."""
    progress.begin("loading models")
    config = VerifierConfig(model_name=str(MODEL_FOLDER), max_batch_size=settings.batch)
    target = TargetModel.load(config)
    graph = folder / "graph.pkl"
    kinds = _kinds(settings, target, graph, progress)
    progress.begin("measuring passes")
    draft_model = settings.draft_model
    decoders = {
        PLAIN: SpeculativeDecoder(None, config, DraftConfig(k=0), target=target),
        NGRAMS: SpeculativeDecoder(graph, config, target=target),
        MODEL: SpeculativeDecoder(None, config, DraftConfig(strategy="model"), draft_model=draft_model, target=target),
        BOTH: SpeculativeDecoder(graph, config, draft_model=draft_model, target=target),
    }
    ways = {
        way: EngineDecoding(
            target, decoder.drafter, decoder.draft_config, settings.batch,
            cost=decoder.costs.relative_of_widths if decoder.costs is not None else None,
        ).decode
        for way, decoder in decoders.items()
    }  # fmt: skip
    for decode in ways.values():
        decode([request for requests in kinds.values() for request in requests[settings.limit :]])
    trials = {
        kind: interleaved(
            ways, requests[: settings.limit], _TURN * settings.batch, progress.teller(f"decoding: {kind}")
        )
        for kind, requests in kinds.items()
    }
    for decoder in decoders.values():
        decoder.close()
    together = reduce(add, trials.values())
    rates = {way: round(together.statistics(way).tokens_per_s, 3) for way in ways}
    return {
        "identical": all(together.is_identical(way, PLAIN) for way in ways),
        "batch": settings.batch,
        "prompts": settings.limit,
        "kinds": {kind: _figures(each) for kind, each in trials.items()},
        "tree_tokens_per_s": rates[NGRAMS],
        "model_tokens_per_s": rates[MODEL],
        "tree_with_model_tokens_per_s": rates[BOTH],
    }


def ways_report(figures: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[ReportTable]]:
    """Return what is printed of the figures."""
    headings = [""]
    for way in (NGRAMS, MODEL, BOTH):
        headings += [f"{way}:\ntokens a pass", "\nspeed"]
    lines = []
    rows = []
    for kind, by_way in figures["kinds"].items():
        cells = [
            cell
            for way in (NGRAMS, MODEL, BOTH)
            for cell in (f"{by_way[way]['tokens_per_pass']:.2f}", f"×{by_way[way]['speedup']:.2f}")
        ]
        lines.append((kind, *cells))
        rows.append((f"{kind}: both, in tokens/s of the better", f"×{by_way['both_over_better']:.3f}"))
    return rows, [ReportTable(headings, lines)]


def _figures(trials: Trials) -> dict[str, Any]:
    by_way = {way: trials.statistics(way) for way in trials.runs}
    rates = {way: each.tokens_per_s for way, each in by_way.items()}
    figures: dict[str, Any] = {
        way: {
            "tokens_per_pass": round(each.mean_accepted_tokens, 4),
            "tokens_per_s": round(rates[way], 3),
            "speedup": round(rates[way] / rates[PLAIN], 4),
        }
        for way, each in by_way.items()
    }
    return figures | {"both_over_better": round(rates[BOTH] / max(rates[NGRAMS], rates[MODEL]), 4)}


def _kinds(
    settings: BenchAdapterSettings, target: TargetModel, graph: Path, progress: BenchProgress
) -> dict[str, list[BenchRequest]]:
    """Build the graph of a part of what the draft model never saw; return prompts of every kind.

    Only functions that the demo model goes on to write are prompts. Behind those that were asked for there are some to
    warm up with: others, as drafters learn from what is written.
    """
    unknown = draft_files()[1]
    in_graph = [path for path in unknown if "http" in path.parts or "json" in path.parts]
    files = {
        "the draft model knows it": [path for path in training_files()[0] if path not in unknown],
        "the graph holds it": in_graph,
        "neither": [path for path in unknown if path not in in_graph],
    }
    GraphBuilder(tokenizer_name=target.fingerprint.name).build(in_graph, graph, progress=progress.show_build)
    plain = EngineDecoding(target, NullDrafter(), DraftConfig(k=0), 1, GenerationConfig())
    kinds: dict[str, list[BenchRequest]] = {}
    for kind, paths in files.items():
        progress.begin(f"choosing prompts: {kind}")
        found = beginnings_of(paths)
        random.Random(0).shuffle(found)
        kinds[kind] = []
        for text in found:
            if len(kinds[kind]) == settings.limit + settings.batch:
                break
            request = BenchRequest(tuple(target.encode(text)), settings.max_tokens)
            if len(plain.decode([request]).rows[0].token_ids) > settings.max_tokens // 2:
                kinds[kind].append(request)
    plain.close()
    return kinds
