"""``speculant bench replay``: measures how many decoding steps drafts save on recorded outputs.

The bench replays a recorded output as if a model generated it again. At each step, the bench drafts, accepts the nodes
that agree with the recorded output, and continues after them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.curves import write_picture
from speculant_graph.bench.replay_layers import curves_of, layer_figures
from speculant_graph.bench.replaying import PromptLookupDrafter, replay, replay_figures
from speculant_graph.bench.report import COMMAS, begin, print_report, show_build
from speculant_graph.bench.texts import Workload, read_workloads
from speculant_graph.budget import CostCurve, curve_of
from speculant_graph.config import DraftConfig, FoldConfig, GraphConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.graph.layers import load_layers
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.settings import GraphPaths, ReportingSettings, TypedPath, load_settings
from speculant_graph.strategies import STRATEGIES, NgramStrategyName
from speculant_graph.terminal import counted
from speculant_graph.types import Fingerprint

ReplayStrategyName = Literal[NgramStrategyName, "prompt-lookup"]
"""Strategies that the bench can replay: all n-gram strategies, and the baseline, prompt lookup."""

_SET_BY_THE_BENCH = {"-k": "--budget", "--draft.k": "--budget", "--draft.strategy": "--strategy"}
_PROMPT_LOOKUP: Final = "prompt-lookup"
_WARM_UP_TOKENS = 16
_BUDGET_OF_LAYERS, _YOUNG_TOKENS = 16, 4_096
"""Defaults of --layers."""
_COLUMNS = (
    "workload", "strategy", "budget", "mean_accepted_tokens", "mean_accepted_tokens_interval", "over_prompt_lookup",
    "acceptance_rate", "drafted_per_step", "draft_us_p50", "relative_speed",
)  # fmt: skip


class BenchReplaySettings(ReportingSettings):
    """Replay recorded outputs as a greedy model would write them, and count the steps that drafts save.

    A step drafts up to --budget nodes, accepts the longest path that matches the recorded output, and adds one more
    token. Every combination of workload, strategy and budget begins with a fresh drafter.
    """

    traces: CliVariadicArg[list[TypedPath]]
    """Recorded outputs: JSON Lines files with the text fields 'prompt' and 'output' in every line. Each trace file is
    one workload. The workload's name is the field 'workload' of the first line, or else the file's name."""
    corpus: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Corpus files, folders and patterns to count into one n-gram graph, as for 'speculant build'. Without a corpus and
    without --graph, drafts come only from the replayed sequences."""
    graph_path: CliVariadicArg[GraphPaths] = []  # noqa: RUF012
    """Graph file to draft from instead of counting a corpus; up to four files serve as layers."""
    strategy: Annotated[list[ReplayStrategyName], COMMAS] = [  # noqa: RUF012
        "adaptive", "tree", "prompt-lookup",
    ]  # fmt: skip
    """Strategies to replay, separated by commas: the n-gram strategies of --draft.strategy, and 'prompt-lookup'. The
    baseline 'prompt-lookup' copies the text after the first occurrence of the last tokens."""
    budget: Annotated[list[Annotated[int, Field(ge=1, le=2_048)]], COMMAS] = [8, 16, 32]  # noqa: RUF012
    """Maximum numbers of nodes (drafted tokens) per step to replay with, separated by commas."""
    cost: str | None = None
    """Cost of passes: 'flat', 'dense', 'cpu-moe', 'moe', 'gptoss-h100', 'gptoss-spark', 'dense-8b-h100', or a file such
    as {"tokens": [1, 8, 64], "ms": [3.0, 4.7, 6.4]}, whose 'tokens' must begin at 1. For this bench, only the ratios
    between the times matter. With a cost curve, a draft keeps only the nodes that are worth their cost, up to the
    budget."""
    online: bool = False
    """Learn from the accepted text of earlier outputs to draft later ones, and pass the model's own tokens to token
    recycling."""
    layers: bool = False
    """Replay each file as a tenant, in --slices parts, with one strategy and budget (by default 'tree' and 16);
    requires --online. Print tokens per step over time for three variants: no learning, a memory of fold.young-tokens
    tokens, and older text folded into graphs."""
    slices: Annotated[int, Field(ge=2, le=1_000)] = 8
    """Number of equal parts, such as weeks, into which --layers cuts each file's traces, in their order. The bench
    replays the first part of every file, then the second part of every file, and so on."""
    picture: Path | None = None
    """Draw the curves of --layers into this SVG file."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Number of traces to replay from the start of each file; by default all."""
    graph: GraphConfig = GraphConfig()
    """Graph settings: the tokenizer, the n-gram orders, and how the corpus is read."""
    draft: DraftConfig = DraftConfig()
    """Drafting options of the strategies; --budget sets 'k', and --strategy sets 'strategy'."""
    fold: FoldConfig = FoldConfig()
    """Settings for folding learned text into graphs with --layers; 'young_tokens' defaults to 4,096 here."""


def run(arguments: Sequence[str]) -> int:
    """Replay and print."""
    for argument in arguments:
        for flag, instead in _SET_BY_THE_BENCH.items():
            if argument.startswith(flag):
                raise ConfigError(f"{flag} is set by this bench itself; set {instead}")
    # pydantic alone would read --graph as the section with the tokenizer.
    typed = [re.sub(r"^--graph(?==|$)", "--graph-path", argument) for argument in arguments]
    settings = load_settings(BenchReplaySettings, "bench replay", typed)
    cost = _checked_cost(settings)
    graphs, workloads, tokenizer = _read(settings)
    if settings.layers:
        _replay_layers(settings, graphs, workloads, tokenizer, arguments)
        return 0
    results = _replay_all(settings, graphs, cost, workloads)
    figures = {
        "results": results,
        "graph_tokens": sum(graph.metadata.num_tokens for graph in graphs) or None,
        "max_order": max((graph.max_order for graph in graphs), default=None),
        "layers": len(graphs),
        "online": settings.online,
        "cost": settings.cost,
    }
    print_report("replay", figures, arguments, as_json=settings.json_output, columns={"results": _COLUMNS})
    return 0


def _replay_layers(
    settings: BenchReplaySettings,
    graphs: Sequence[NgramGraph],
    workloads: Sequence[Workload],
    tokenizer: Fingerprint,
    arguments: Sequence[str],
) -> None:
    """Replay the traces slice by slice, print the figures, and draw the curves."""
    is_chosen = {"strategy", "budget"} & settings.model_fields_set
    strategy = settings.strategy[0] if "strategy" in is_chosen else "tree"
    budget = settings.budget[0] if "budget" in is_chosen else _BUDGET_OF_LAYERS
    draft = DraftConfig.model_validate(settings.draft.model_dump() | {"strategy": strategy, "k": budget})
    fold = settings.fold
    young = fold.young_tokens if "young_tokens" in fold.model_fields_set else _YOUNG_TOKENS
    fold = fold.model_copy(update={"young_tokens": min(young, draft.max_learned_tokens)})
    figures = layer_figures(graphs, workloads, tokenizer, draft, fold, settings.slices)
    print_report("replay", figures, arguments, as_json=settings.json_output)
    if settings.picture is not None:
        write_picture(settings.picture, curves_of(figures))


def _checked_cost(settings: BenchReplaySettings) -> CostCurve | None:
    """Check that the settings do not contradict each other; return the cost curve that --cost names.

    Raises:
        ConfigError: settings contradict each other, or --cost names no known curve.
    """
    if not settings.traces:
        raise ConfigError("--traces names no file; name JSON Lines with the texts 'prompt' and 'output'")
    if settings.corpus and settings.graph_path:
        raise ConfigError("--corpus and --graph exclude each other; give one of them")
    if settings.layers:
        several = "strategy" in settings.model_fields_set and len(settings.strategy) > 1
        several |= "budget" in settings.model_fields_set and len(settings.budget) > 1
        if not settings.online:
            raise ConfigError("--layers folds learned text; add --online")
        if several or (_PROMPT_LOOKUP in settings.strategy and "strategy" in settings.model_fields_set):
            raise ConfigError("--layers replays one n-gram strategy with one budget; name one of each")
        if settings.cost is not None:
            raise ConfigError("--layers counts tokens per step and ignores the cost of passes; leave --cost out")
        if settings.picture is not None and not settings.picture.parent.is_dir():
            raise ConfigError(f"--picture: there is no folder {settings.picture.parent}", fix="make it first")
    for name in sorted({"picture", "slices"} & settings.model_fields_set):
        if not settings.layers:
            raise ConfigError(f"--{name} is used only with --layers; add --layers, or leave --{name} out")
    has_graph = bool(settings.corpus or settings.graph_path)
    for name in settings.strategy:
        if name != _PROMPT_LOOKUP and STRATEGIES[name].needs_graph and not has_graph:
            raise ConfigError(
                f"--strategy: '{name}' drafts only from a graph; give --corpus or --graph, or leave it out"
            )
    return None if settings.cost is None else curve_of(settings.cost, "--cost")


def _read(settings: BenchReplaySettings) -> tuple[list[NgramGraph], list[Workload], Fingerprint]:
    """Read the graphs and the traces, and check all inputs before slow work starts."""
    config = settings.graph
    graphs = list(load_layers(settings.graph_path))
    begin("reading the tokenizer")
    name = config.tokenizer_name
    if graphs and "tokenizer_name" not in config.model_fields_set:
        name = graphs[0].metadata.tokenizer.name
    tokenizer = CorpusTokenizer.load(
        name,
        config.hf_token.get_secret_value() if config.hf_token else None,
        special_tokens="parse",  # special tokens in an output were generated by a model
    )
    for graph in graphs:
        tokenizer.require(graph.metadata.tokenizer)
    begin("tokenising the traces")
    workloads = read_workloads(settings.traces, tokenizer, settings.limit)
    if settings.corpus:
        builder = GraphBuilder(**config.model_dump())
        graphs = [builder.build_from_files(settings.corpus, progress=show_build())]
    return graphs, workloads, tokenizer.fingerprint


def _replay_all(
    settings: BenchReplaySettings,
    graphs: Sequence[NgramGraph],
    cost: CostCurve | None,
    workloads: Sequence[Workload],
) -> list[dict[str, Any]]:
    """Replay every combination of workload, strategy and budget, in this order; return each run's figures."""

    def fresh_drafter(strategy: str, budget: int) -> SessionDrafter | PromptLookupDrafter:
        if strategy == _PROMPT_LOOKUP:
            return PromptLookupDrafter()
        config = DraftConfig.model_validate(settings.draft.model_dump() | {"strategy": strategy, "k": budget})
        return SessionDrafter(graphs, config)

    results: list[dict[str, Any]] = []
    for workload, strategy, budget in product(workloads, settings.strategy, sorted(settings.budget)):
        tell = begin(f"{workload.name}, {strategy}, {counted(budget, 'node')}")
        # The warm-up reads the graph's pages before the timed run.
        first = workload.traces[0]
        warm_up = replace(first, output=first.output[:_WARM_UP_TOKENS])
        replay(fresh_drafter(strategy, budget), [warm_up], budget, learn=settings.online, cost=cost)
        drafter = fresh_drafter(strategy, budget)
        replayed = replay(drafter, workload.traces, budget, learn=settings.online, cost=cost, tell=tell)
        figures = replay_figures(replayed, cost)
        results.append({"workload": workload.name, "strategy": strategy, "budget": budget, **figures})
    baselines = {
        (each["workload"], each["budget"]): each["mean_accepted_tokens"]
        for each in results
        if each["strategy"] == _PROMPT_LOOKUP
    }
    for each in results:
        baseline = baselines.get((each["workload"], each["budget"]))
        each["over_prompt_lookup"] = None if baseline is None else round(each["mean_accepted_tokens"] / baseline, 4)
    return results
