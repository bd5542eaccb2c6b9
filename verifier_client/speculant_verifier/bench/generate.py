"""``speculant bench generate``: decoding plainly, with drafts, and with what transformers brings itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.config_learning import DraftModelConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress
    from speculant_verifier.bench.cases import CaseGroup
    from speculant_verifier.model import TargetModel

_MAX_TOKENS = 128
_LIMIT = 10
_NO_GRAPH = "none"


class BenchGenerateSettings(CommandSettings):
    """Decode the same requests with this engine and with transformers, plainly and with drafts, in turns.

    Transformers' generate runs plainly, with prompt lookup and with an assistant model, on the same model object.
    With recorded outputs the passes are real, but every way is made to write the record. The exit status is 1 if
    drafts changed a token in float32.
    """

    prompts: Path | None = None
    """Prompts: one a line, or JSON Lines with the field 'prompt'."""
    replay: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Recorded outputs instead of prompts: JSON Lines with the texts 'prompt' and 'output'. Each file is a workload."""
    demo: bool = False
    """Use the demo's model and prompts and, without --graph-path, its graph of the standard library."""
    graph_path: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Draft in this process from this graph; or one for each file of --replay, 'none' for those without."""
    assistant: str | None = None
    """Draft model of transformers' assisted generation: a folder."""
    batch: Annotated[int, Field(ge=1, le=256)] = 1
    """Requests decoded together. Transformers' own speculation takes one only and is left out otherwise."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Most requests of each file, the first ones; 10 of recorded outputs unless said otherwise."""
    wrong_drafts: bool = False
    """Make every drafted token a wrong one: what drafts cost where none is ever accepted."""
    requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Requests of --mixed-lengths. Prompts are used again and again, which drafts learn from; '-k 0' goes without."""
    mixed_lengths: bool = False
    """Measure something else: requests of unequal lengths in --batch rows that are refilled when one is free, against
    batches that wait for their slowest."""
    engine_overhead: bool = False
    """Measure something else: what a step takes beside the pass and the drafter, with 16 nodes for each of --batch
    rows."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    verifier: VerifierConfig = VerifierConfig()
    """The model: a folder, a name on the hub, or random weights such as 'random:150M' with the tokenizer's folder."""
    draft: DraftConfig = DraftConfig()
    """How to draft."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """A small language model that drafts, too."""
    generation: GenerationConfig = GenerationConfig()
    """How tokens are chosen; at most 128 unless said otherwise."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecar, if there is one. What it learned before, it knows."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if drafts changed a token where they must not."""
    settings = _completed(load_settings(BenchGenerateSettings, "bench generate", arguments))
    _check(settings)
    from speculant_graph.bench.replay_progress import show_progress
    from speculant_verifier.bench.models import load_target
    from speculant_verifier.console import quiet_transformers

    quiet_transformers()
    with show_progress() as progress:
        progress.begin("loading the model")
        target = load_target(settings.verifier)
        if settings.engine_overhead:
            from speculant_verifier.bench.overhead import measure_overhead, print_overhead

            figures = measure_overhead(target, settings.batch, progress)
            printing = print_overhead
        else:
            groups = _groups(settings, target)
            if settings.mixed_lengths:
                from speculant_verifier.bench.refill import measure_refill, print_refill

                with _drafting(settings, target, 0, progress) as decoder:
                    figures = measure_refill(
                        target, decoder.drafter, groups, settings.generation, settings.batch, settings.requests,
                        settings.draft, progress,
                    )  # fmt: skip
                printing = print_refill
            else:
                from speculant_verifier.bench.generate_report import print_generate

                figures = _compare(settings, target, groups, progress)
                printing = print_generate
    from speculant_verifier.bench.verify_cost import describe

    figures |= describe(target) | {"batch": settings.batch}
    printing(figures, arguments, as_json=settings.json_output)
    return int(not figures.get("identical", True) and figures["dtype"] == "float32")


def _completed(settings: BenchGenerateSettings) -> BenchGenerateSettings:
    """Put the bench's own defaults where nothing was said."""
    generation, verifier = settings.generation, settings.verifier
    if "max_tokens" not in generation.model_fields_set:
        generation = generation.model_copy(update={"max_tokens": _MAX_TOKENS})
    if settings.demo:
        folder = str(Path(__file__).parents[1] / "demo" / "model")
        verifier = verifier.model_copy(update={"model_name": folder, "tokenizer_name": None})
    limit = settings.limit or (_LIMIT if settings.replay else None)
    new = {"generation": generation, "verifier": verifier, "limit": limit}
    return settings.model_copy(update=new)


def _check(settings: BenchGenerateSettings) -> None:
    sources = sum((settings.prompts is not None, bool(settings.replay), settings.demo))
    if settings.engine_overhead:
        if sources - settings.demo:
            raise ConfigError("--engine-overhead makes up its own requests; leave --prompts and --replay out")
        if settings.mixed_lengths:
            raise ConfigError("--engine-overhead and --mixed-lengths measure different things; give one of them")
        return
    if sources != 1:
        raise ConfigError("say what to decode: one of --prompts FILE, --replay TRACES and --demo")
    if settings.graph_path and settings.client.address:
        raise ConfigError("--graph-path and --address both say what to draft from; give one of them")
    if len(settings.graph_path) > 1 and len(settings.graph_path) != len(settings.replay):
        raise ConfigError("--graph-path takes one graph, or one for each file of --replay ('none' for none)")
    if settings.mixed_lengths and len(settings.graph_path) > 1:
        raise ConfigError("--mixed-lengths takes one graph for all; name one behind --graph-path")
    if settings.assistant is not None and settings.batch > 1:
        raise ConfigError("assisted generation takes one request at a time; leave --assistant or --batch out")


def _groups(settings: BenchGenerateSettings, target: TargetModel) -> list[CaseGroup]:
    from speculant_verifier.bench.cases import prompt_cases, read_prompts, replay_cases

    max_tokens = settings.generation.max_tokens
    if settings.replay:
        return replay_cases(settings.replay, target, settings.limit, max_tokens)
    if settings.prompts is not None:
        texts: Sequence[str] = read_prompts(settings.prompts, settings.limit)
        return [prompt_cases(texts, target, max_tokens, settings.prompts.stem)]
    from speculant_verifier.demo.prompts import PROMPTS

    return [prompt_cases(PROMPTS[: settings.limit], target, max_tokens, "demo")]


def _compare(
    settings: BenchGenerateSettings, target: TargetModel, groups: Sequence[CaseGroup], progress: BenchProgress
) -> dict[str, Any]:
    from speculant_verifier.bench.generate_runs import GenerateRuns, Outcome, generate_figures, total_efficiency
    from speculant_verifier.bench.own_decoding import WrongDrafter
    from speculant_verifier.bench.transformers_decoding import load_assistant

    assistant = None if settings.assistant is None else load_assistant(settings.assistant, target)
    runs = GenerateRuns(target, settings.generation, settings.batch, settings.draft, assistant)
    total, outcomes, names = Outcome("all"), [], []
    for place, group in enumerate(groups):
        with _drafting(settings, target, place, progress) as decoder:
            drafter = (
                WrongDrafter(decoder.drafter, target.vocabulary_size) if settings.wrong_drafts else decoder.drafter
            )
            cost = decoder.costs.relative_of_widths if decoder.costs is not None else None
            outcome = runs.run(group, drafter, cost, total, progress)
            names.append(_source(settings, place, decoder.drafter.state))
        if settings.replay:
            runs.measure_costs(group, outcome, progress)
        outcomes.append(outcome)
    is_greedy = settings.generation.temperature == 0.0
    figures = generate_figures(total, settings.batch, is_greedy=is_greedy)
    if settings.replay:
        figures["cost_efficiency"] = total_efficiency(total, outcomes, settings.batch)
    return figures | {
        "workloads": [
            {"workload": outcome.name} | generate_figures(outcome, settings.batch, is_greedy=is_greedy)
            for outcome in outcomes
        ],
        "replayed": bool(settings.replay),
        "strategy": settings.draft.strategy,
        "k": settings.draft.k,
        "drafter": "; ".join(dict.fromkeys(names)),
        "speculation": settings.generation.speculation,
        "wrong_drafts": settings.wrong_drafts,
    }


def _drafting(settings: BenchGenerateSettings, target: TargetModel, place: int, progress: BenchProgress) -> Any:
    """Return a decoder whose drafter drafts for a group, as a context manager."""
    from speculant_verifier.decoder import SpeculativeDecoder

    path = _graph_path(settings, place)
    if path is None and settings.demo and settings.draft.k and not settings.client.address:
        return _demo_decoder(settings, target, progress)
    return SpeculativeDecoder(
        path, settings.verifier, settings.draft, client_config=settings.client, draft_model=settings.draft_model,
        target=target,
    )  # fmt: skip


def _demo_decoder(settings: BenchGenerateSettings, target: TargetModel, progress: BenchProgress) -> Any:
    import tempfile

    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.demo.corpus import standard_library_files

    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        path = Path(folder) / "standard_library.pkl"
        builder = GraphBuilder(tokenizer_name=settings.verifier.model_name)
        builder.build(standard_library_files(), path, progress=progress.show_build)
        # It is mapped, so the file may go.
        return SpeculativeDecoder(
            path, settings.verifier, settings.draft, draft_model=settings.draft_model, target=target
        )


def _graph_path(settings: BenchGenerateSettings, place: int) -> Path | None:
    if not settings.graph_path:
        return None
    path = settings.graph_path[place if len(settings.graph_path) > 1 else 0]
    return None if str(path) == _NO_GRAPH else path


def _source(settings: BenchGenerateSettings, place: int, state: str) -> str:
    if state == "off":
        return "nothing, for this strategy needs a graph"
    if settings.client.address:
        return f"the sidecar at {settings.client.address}"
    path = _graph_path(settings, place)
    if path is not None:
        return f"{path.name} and the requests"
    return "the standard library and the requests" if settings.demo else "the requests alone"
