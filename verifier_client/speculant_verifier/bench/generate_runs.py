"""Decodes the same requests in every way and makes the figures of ``speculant bench generate``."""

from __future__ import annotations

import random
import tempfile
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.bench.progress import BenchProgress
from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.bench.engine_decoding import EngineDecoding
from speculant_verifier.bench.models import describe, load_target
from speculant_verifier.bench.transformers_decoding import decode_transformers, load_assistant
from speculant_verifier.bench.trials import Decode, Trials, interleaved
from speculant_verifier.bench.workload import BenchRequest, RequestGroup, prompt_group, read_prompts, replay_groups
from speculant_verifier.console import quiet_transformers
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.corpus import standard_library_files
from speculant_verifier.demo.prompts import PROMPTS
from speculant_verifier.model import TargetModel

if TYPE_CHECKING:
    from speculant_verifier.bench.generate import BenchGenerateSettings

_PLAIN, _SPECULATIVE, _TRANSFORMERS, _PROMPT_LOOKUP, _ASSISTED = (
    "plain", "speculative", "transformers", "prompt_lookup", "assisted",
)  # fmt: skip
_PROMPT_LOOKUP_TOKENS = 10
"""``prompt_lookup_num_tokens``: the value of transformers' documentation."""
_WARM_UP_PROMPT, _WARM_UP_TOKENS = 32, 8


def measure_generate(settings: BenchGenerateSettings, progress: BenchProgress) -> dict[str, Any]:
    """Decode everything in every way and return the figures, ready for JSON."""
    quiet_transformers()
    progress.begin("loading the model")
    target = load_target(settings.verifier)
    groups = _groups(settings, target)
    with _decoder(settings, target, progress) as decoder:
        ways = _ways(settings, target, decoder)
        progress.begin("warming up")
        for decode in ways.values():
            decode([_warm_up(target)] * settings.batch)
        trials = [
            interleaved(ways, group.requests, settings.batch, progress.teller(f"{group.name}: decoding"))
            for group in groups
        ]
        source = _source(settings, decoder.drafter.state)
    # Where tokens are drawn, transformers draws other ones: its random numbers are not ours.
    compared = (_SPECULATIVE,) if settings.generation.temperature else (_SPECULATIVE, _TRANSFORMERS)
    return {
        **_figures(reduce(add, trials), compared),
        "workloads": [
            {"workload": group.name, **_figures(each, compared)} for group, each in zip(groups, trials, strict=True)
        ],
        "replayed": bool(settings.replay),
        "strategy": settings.draft.strategy,
        "k": settings.draft.k,
        "drafter": source,
        "speculation": settings.generation.speculation,
        "batch": settings.batch,
        **describe(target),
    }


def _groups(settings: BenchGenerateSettings, target: TargetModel) -> list[RequestGroup]:
    max_tokens = settings.generation.max_tokens
    if settings.replay:
        return replay_groups(settings.replay, target, settings.limit, max_tokens)
    if settings.prompts is not None:
        texts = read_prompts(settings.prompts, settings.limit)
        return [prompt_group(texts, target, max_tokens, settings.prompts.stem)]
    return [prompt_group(PROMPTS[: settings.limit], target, max_tokens, "demo")]


def _decoder(settings: BenchGenerateSettings, target: TargetModel, progress: BenchProgress) -> SpeculativeDecoder:
    """Return a decoder, of which the drafter is wanted, and its costs."""

    def opened(path: Path | None) -> SpeculativeDecoder:
        return SpeculativeDecoder(
            path, settings.verifier, settings.draft, client_config=settings.client, draft_model=settings.draft_model,
            target=target,
        )  # fmt: skip

    if settings.graph_path is not None or not settings.demo or not settings.draft.k or settings.client.address:
        return opened(settings.graph_path)
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        path = Path(folder, "standard_library.pkl")
        builder = GraphBuilder(tokenizer_name=settings.verifier.model_name)
        builder.build(standard_library_files(), path, progress=progress.show_build)
        return opened(path)  # it is mapped, so the file may go


def _ways(settings: BenchGenerateSettings, target: TargetModel, decoder: SpeculativeDecoder) -> dict[str, Decode]:
    config, batch = settings.generation, settings.batch
    cost = decoder.costs.relative_of_widths if decoder.costs is not None else None
    other = partial(decode_transformers, target, config=config)
    ways: dict[str, Decode] = {
        _PLAIN: EngineDecoding(target, NullDrafter(), DraftConfig(k=0), batch, config, cost=cost).decode,
        _SPECULATIVE: EngineDecoding(target, decoder.drafter, settings.draft, batch, config, cost=cost).decode,
        _TRANSFORMERS: other,
    }
    if batch == 1:  # all that transformers' own speculation takes
        ways[_PROMPT_LOOKUP] = partial(other, prompt_lookup_num_tokens=_PROMPT_LOOKUP_TOKENS)
        if settings.assistant is not None:
            ways[_ASSISTED] = partial(other, assistant_model=load_assistant(settings.assistant, target))
    return ways


def _warm_up(target: TargetModel) -> BenchRequest:
    generator = random.Random(0)
    prompt = [generator.randrange(target.vocabulary_size) for _ in range(_WARM_UP_PROMPT)]
    return BenchRequest(tuple(prompt), _WARM_UP_TOKENS)


def _source(settings: BenchGenerateSettings, state: str) -> str:
    if state == "off":
        return "nothing, for this strategy needs a graph"
    if settings.client.address:
        return f"the sidecar at {settings.client.address}"
    if settings.graph_path is not None:
        return f"{settings.graph_path.name} and the requests"
    return "the standard library and the requests" if settings.demo else "the requests alone"


def _figures(trials: Trials, compared: tuple[str, ...]) -> dict[str, Any]:
    by_way = {way: trials.statistics(way) for way in trials.runs}
    plain, speculative = by_way[_PLAIN], by_way[_SPECULATIVE]
    is_identical = {way: trials.is_identical(way, _PLAIN) for way in by_way}
    plain_rate = plain.decode_tokens_per_s
    figures: dict[str, Any] = {
        "requests": len(trials.requests),
        "tokens": plain.num_tokens,
        "identical": is_identical[_PLAIN] and all(is_identical[way] for way in compared),
        "identical_by_way": is_identical,
        "speedup": round(speculative.tokens_per_s / plain.tokens_per_s, 4),
        "decode_speedup": round(speculative.decode_tokens_per_s / plain_rate, 4) if plain_rate else None,
        "mean_accepted_tokens": round(speculative.mean_accepted_tokens, 4),
        "acceptance_rate": round(speculative.num_accepted / max(1, speculative.num_drafted), 4),
        "drafted_per_step": round(speculative.num_drafted / speculative.num_steps, 4),
        "steps": speculative.num_steps,
        "steps_without_drafter": speculative.num_steps_without_drafter,
    }
    for way in (_PLAIN, _SPECULATIVE, _TRANSFORMERS, _PROMPT_LOOKUP, _ASSISTED):
        each = by_way.get(way)
        figures[f"{way}_tokens_per_s"] = None if each is None else round(each.tokens_per_s, 3)
        figures[f"{way}_decode_tokens_per_s"] = None if each is None else round(each.decode_tokens_per_s, 3)
        figures[f"{way}_mean_accepted_tokens"] = None if each is None else round(each.mean_accepted_tokens, 4)
    figures |= speculative.timing()
    return figures | {"phase_ms": speculative.phase_ms(), "plain_phase_ms": plain.phase_ms()}
