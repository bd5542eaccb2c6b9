"""``speculant bench adapter``: compares a draft model, n-grams and both on text known to one or to neither."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from speculant_graph.bench.report import begin, print_report, show_build
from speculant_graph.budget import StepBudget
from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, DraftModelConfig, VerifierConfig
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_verifier.bench.decoding import EngineDecoding, Trials, interleaved
from speculant_verifier.bench.workload import BenchRequest, load_target, requests_of
from speculant_verifier.demo import DRAFT_MODEL_FOLDER, MODEL_FOLDER
from speculant_verifier.demo.corpus import beginnings_of, draft_files, training_files

if TYPE_CHECKING:
    from speculant_verifier.model import TargetModel

_PLAIN, _NGRAMS, _MODEL, _BOTH = "plain", "tree", "model", "tree_with_model"
_REQUESTS_AT_A_TIME = 2
"""Number of requests that one variant decodes before the next variant runs."""


class BenchAdapterSettings(ReportingSettings):
    """Decode prompts with the demo model in four interleaved variants: plain, n-grams, draft model, and both.

    The prompts come from three kinds of text: known to the draft model, contained in the graph, and known to neither.
    The exit status is 1 if drafts changed a token.
    """

    limit: Annotated[int, Field(ge=1)] = 24
    """Number of prompts per kind of text."""
    max_tokens: Annotated[int, Field(ge=8)] = 96
    """Maximum number of new tokens per prompt, at least 8."""


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures; return 1 if drafts changed a token."""
    settings = load_settings(BenchAdapterSettings, "bench adapter", arguments)
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        figures = _measured(settings, Path(folder))
    print_report("adapter", figures, arguments, as_json=settings.json_output)
    return int(not figures["identical"])


def _measured(settings: BenchAdapterSettings, folder: Path) -> dict[str, Any]:
    """Decode prompts of every kind with every variant; return the figures as JSON values."""
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.speculation import ObservedCosts

    begin("loading models")
    config = VerifierConfig(model_name=str(MODEL_FOLDER), max_batch_size=1)
    target = load_target(config)
    graph = folder / "graph.pkl"
    kinds = _kinds(settings, target, graph)
    begin("measuring passes")
    model, draft = DraftModelConfig(name=str(DRAFT_MODEL_FOLDER)), DraftConfig(strategy="model")
    decoders = {
        _PLAIN: SpeculativeDecoder(None, config, DraftConfig(k=0), target=target),
        _NGRAMS: SpeculativeDecoder(graph, config, target=target),
        _MODEL: SpeculativeDecoder(None, config, draft, draft_model=model, target=target),
        _BOTH: SpeculativeDecoder(graph, config, draft_model=model, target=target),
    }
    variants = {
        variant: EngineDecoding(
            target, decoder.drafter, decoder.draft_config, 1,
            budget=StepBudget(ObservedCosts(decoder.costs)) if decoder.costs is not None else None,
        ).decode
        for variant, decoder in decoders.items()
    }  # fmt: skip
    for decode in variants.values():
        decode([request for requests in kinds.values() for request in requests[settings.limit :]])
    trials = {
        kind: interleaved(variants, requests[: settings.limit], _REQUESTS_AT_A_TIME, begin(f"decoding: {kind}"))
        for kind, requests in kinds.items()
    }
    for decoder in decoders.values():
        decoder.close()
    together = reduce(add, trials.values())
    return {
        "identical": all(together.is_identical(variant, _PLAIN) for variant in variants),
        "prompts": settings.limit,
        "kinds": [{"kind": kind, **_figures(each)} for kind, each in trials.items()],
        **{f"{variant}_tokens_per_s": round(together.statistics(variant).tokens_per_s, 3) for variant in variants},
    }


def _figures(trials: Trials) -> dict[str, Any]:
    by_variant = {variant: trials.statistics(variant) for variant in trials.runs}
    rates = {variant: each.tokens_per_s for variant, each in by_variant.items()}
    figures: dict[str, Any] = {}
    for variant, each in by_variant.items():
        figures |= {
            f"{variant}_tokens_per_pass": round(each.mean_accepted_tokens, 4),
            f"{variant}_speedup": round(rates[variant] / rates[_PLAIN], 4),
        }
    return figures | {"both_over_better": round(rates[_BOTH] / max(rates[_NGRAMS], rates[_MODEL]), 4)}


def _kinds(settings: BenchAdapterSettings, target: TargetModel, graph: Path) -> dict[str, list[BenchRequest]]:
    """Build the graph from part of the text that the draft model has not seen; return prompts of each kind.

    A function becomes a prompt only if the demo model continues it by more than half of ``max_tokens``. The last prompt
    of each kind serves only for warm-up. The warm-up prompt must differ from the measured prompts, because drafters
    learn from its output.
    """
    unknown = draft_files()[1]
    in_graph = [path for path in unknown if "http" in path.parts or "json" in path.parts]
    files = {
        "the draft model knows it": [path for path in training_files()[0] if path not in unknown],
        "the graph holds it": in_graph,
        "neither": [path for path in unknown if path not in in_graph],
    }
    GraphBuilder(tokenizer_name=target.fingerprint.name).build(in_graph, graph, progress=show_build())
    plain = EngineDecoding(target, NullDrafter(), DraftConfig(k=0), 1)
    kinds: dict[str, list[BenchRequest]] = {}
    for kind, paths in files.items():
        begin(f"choosing prompts: {kind}")
        found = beginnings_of(paths)
        random.Random(0).shuffle(found)
        kinds[kind] = []
        for request in requests_of(found, target, settings.max_tokens):
            if len(kinds[kind]) == settings.limit + 1:
                break
            if len(plain.decode([request]).rows[0].token_ids) > settings.max_tokens // 2:
                kinds[kind].append(request)
    plain.close()
    return kinds
