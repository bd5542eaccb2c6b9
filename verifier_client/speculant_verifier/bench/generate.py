"""``speculant bench generate``: compares plain decoding, decoding with drafts, and transformers' own methods."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.report import begin, print_report
from speculant_graph.budget import StepBudget
from speculant_graph.client import NullDrafter
from speculant_graph.config import ClientConfig, DraftConfig, DraftModelConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import GraphPaths, ReportingSettings, TypedPath, load_settings
from speculant_verifier.bench.decoding import Decode, EngineDecoding, Trials, interleaved
from speculant_verifier.bench.workload import (
    BenchRequest,
    describe,
    load_target,
    read_prompts,
    replayed_requests,
    requests_of,
)
from speculant_verifier.suitability import Sources, log_choice, suited

if TYPE_CHECKING:
    from speculant_verifier.model import TargetModel

_MAX_TOKENS = 128
_LIMIT = 10
_PROMPT_LOOKUP_TOKENS = 10
"""Value of ``prompt_lookup_num_tokens`` in transformers' documentation."""
_WARM_UP_PROMPT, _WARM_UP_TOKENS = 32, 8
_VARIANTS = ("plain", "speculative", "transformers", "prompt_lookup")
_COLUMNS = (
    "workload", "requests", "tokens", *(f"{variant}_tokens_per_s" for variant in _VARIANTS), "speedup",
    "mean_accepted_tokens", "prompt_lookup_mean_accepted_tokens", "identical",
)  # fmt: skip


class BenchGenerateSettings(ReportingSettings):
    """Decode the same requests with this engine and with transformers, each with and without drafts, interleaved.

    Transformers' generate runs on the same model object, once without drafts and once with prompt lookup. With recorded
    outputs, the forward passes are real, but every decoder is forced to emit the recorded tokens. The exit status is 1
    if drafts changed a token in float32.
    """

    prompts: Path | None = None
    """File of prompts: one per line, or JSON Lines with the field 'prompt'."""
    replay: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Recorded outputs instead of prompts: JSON Lines files, each line with the texts 'prompt' and 'output'. Each file
    of recorded outputs forms one workload, with its own figures."""
    graph_path: GraphPaths = []  # noqa: RUF012
    """Graph file to draft from in this process, or up to four graph files as layers."""
    batch: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of requests that are decoded together in a batch. Transformers is measured only at batch size 1, because
    its speculative decoding supports no larger batch."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of requests to decode from the start of each file; by default 10 for recorded outputs."""
    verifier: VerifierConfig = VerifierConfig()
    """The target model: a folder, a name on the hub, or random weights such as 'random:150M' plus a tokenizer's
    folder."""
    draft: DraftConfig = DraftConfig()
    """Drafting options."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """Draft model: a small language model that drafts together with the n-grams, or alone."""
    generation: GenerationConfig = GenerationConfig()
    """Sampling settings and maximum length of the output; by default, at most 128 tokens."""
    client: ClientConfig = ClientConfig()
    """Connection to the drafter sidecar, if any. The sidecar keeps text that it has learned in earlier runs."""


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures; return 1 if drafts changed a token in float32."""
    settings = load_settings(BenchGenerateSettings, "bench generate", arguments)
    if (settings.prompts is not None) == bool(settings.replay):
        raise ConfigError("name what to decode: one of --prompts FILE and --replay TRACES")
    figures = _measured(settings)
    print_report("generate", figures, arguments, as_json=settings.json_output, columns={"workloads": _COLUMNS})
    return int(not figures["identical"] and figures["dtype"] == "float32")


def _measured(settings: BenchGenerateSettings) -> dict[str, Any]:
    """Decode all requests with every variant; return the figures as JSON values."""
    from speculant_verifier.bench.transformers_decoding import decode_transformers
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.speculation import ObservedCosts

    sources = Sources(bool(settings.graph_path) or bool(settings.client.address), bool(settings.draft_model.name))
    draft = suited(settings.draft, settings.generation, sources)
    log_choice(settings.generation.rule, draft, settings.draft)
    begin("loading the model")
    target = load_target(settings.verifier)
    generation, batch = settings.generation, settings.batch
    if "max_tokens" not in generation.model_fields_set:
        generation = generation.model_copy(update={"max_tokens": _MAX_TOKENS})
    groups = _groups(settings, target, generation.max_tokens)
    with SpeculativeDecoder(
        settings.graph_path, settings.verifier, draft, client_config=settings.client,
        draft_model=settings.draft_model, target=target,
    ) as decoder:  # fmt: skip
        budget = StepBudget(ObservedCosts(decoder.costs)) if decoder.costs is not None else None
        variants: dict[str, Decode] = {
            "plain": EngineDecoding(target, NullDrafter(), DraftConfig(k=0), batch, generation, budget=budget).decode,
            "speculative": EngineDecoding(target, decoder.drafter, draft, batch, generation, budget=budget).decode,
        }
        if batch == 1:
            variants["transformers"] = by_transformers = partial(decode_transformers, target, config=generation)
            variants["prompt_lookup"] = partial(by_transformers, prompt_lookup_num_tokens=_PROMPT_LOOKUP_TOKENS)
        begin("warming up")
        for decode in variants.values():
            decode([_warm_up(target)] * batch)
        trials = {
            name: interleaved(variants, requests, batch, begin(f"{name}: decoding"))
            for name, requests in groups.items()
        }
    # With sampling, transformers' output differs, because its random numbers differ.
    compared = {"speculative"} if generation.temperature else {"speculative", "transformers"}
    return {
        **_figures(reduce(add, trials.values()), compared),
        "workloads": [{"workload": name, **_figures(each, compared)} for name, each in trials.items()],
        "strategy": draft.strategy,
        "k": settings.draft.k,
        "batch": batch,
        **describe(target),
    }


def _groups(settings: BenchGenerateSettings, target: TargetModel, max_tokens: int) -> dict[str, list[BenchRequest]]:
    if settings.prompts is not None:
        texts = read_prompts(settings.prompts, settings.limit)
        return {settings.prompts.stem: requests_of(texts, target, max_tokens)}
    return replayed_requests(settings.replay, target, settings.limit or _LIMIT, max_tokens)


def _warm_up(target: TargetModel) -> BenchRequest:
    generator = random.Random(0)
    prompt = [generator.randrange(target.vocabulary_size) for _ in range(_WARM_UP_PROMPT)]
    return BenchRequest(tuple(prompt), _WARM_UP_TOKENS)


def _figures(trials: Trials, compared: set[str]) -> dict[str, Any]:
    by_variant = {variant: trials.statistics(variant) for variant in trials.runs}
    plain, speculative = by_variant["plain"], by_variant["speculative"]
    is_identical = {variant: trials.is_identical(variant, "plain") for variant in by_variant}
    figures: dict[str, Any] = {
        "requests": len(trials.requests),
        "tokens": plain.num_tokens,
        "identical": all(is_identical[variant] for variant in compared & by_variant.keys()) and is_identical["plain"],
        "identical_by_way": is_identical,
        "speedup": round(speculative.tokens_per_s / plain.tokens_per_s, 4),
        "mean_accepted_tokens": round(speculative.mean_accepted_tokens, 4),
        "acceptance_rate": round(speculative.num_accepted / max(1, speculative.num_drafted), 4),
        "drafted_per_step": round(speculative.num_drafted / speculative.num_steps, 4),
        "steps": speculative.num_steps,
        "steps_without_drafter": speculative.num_steps_without_drafter,
    }
    for variant in _VARIANTS:
        each = by_variant.get(variant)
        figures[f"{variant}_tokens_per_s"] = None if each is None else round(each.tokens_per_s, 3)
        figures[f"{variant}_mean_accepted_tokens"] = None if each is None else round(each.mean_accepted_tokens, 4)
    return figures | speculative.timing() | {"phase_ms": speculative.phase_ms(), "plain_phase_ms": plain.phase_ms()}
