"""``speculant bench replay``: what drafts would have saved on recorded outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.report import COMMAS, EACH_ONCE, begin, print_report, show_build
from speculant_graph.config import DraftConfig, GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import ReportingSettings, TypedPath, load_settings
from speculant_graph.view.formatting import counted

if TYPE_CHECKING:
    from speculant_graph.bench.texts import Workload
    from speculant_graph.draft.cost import CostCurve
    from speculant_graph.graph.ngrams import NgramGraph

ReplayStrategyName = Literal[
    "greedy", "sampling", "adaptive", "tree", "specexec", "prompt-lookup"
]  # fmt: skip
"""What can be replayed: the strategies of n-grams, and the baseline."""

_SET_BY_THE_BENCH = {"-k": "--budget", "--draft.k": "--budget", "--draft.strategy": "--strategy"}
_WARM_UP_TOKENS = 16
_COLUMNS = (
    "workload", "strategy", "budget", "mean_accepted_tokens", "mean_accepted_tokens_interval", "over_prompt_lookup",
    "acceptance_rate", "drafted_per_step", "draft_us_p50", "relative_speed",
)  # fmt: skip


class BenchReplaySettings(ReportingSettings):
    """Replay recorded outputs as a greedy model would write them, and count the steps that drafts save.

    A step drafts at most so many nodes, keeps the longest path that agrees with the record and goes on one token behind
    it. Every workload, strategy and budget begins with a fresh drafter.
    """

    traces: CliVariadicArg[list[TypedPath]]
    """Recorded outputs: JSON Lines with the texts 'prompt' and 'output'. Each file is a workload, named by the field
    'workload' of its first line or by the file."""
    corpus: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Files, folders and patterns that are counted into one graph, as for 'speculant build'. Without them and without
    --graph the drafts come from the sequences alone."""
    graph_path: Path | None = None
    """Draft from this graph file instead of counting a corpus."""
    strategy: Annotated[list[ReplayStrategyName], COMMAS, EACH_ONCE] = [  # noqa: RUF012
        "adaptive", "tree", "prompt-lookup",
    ]  # fmt: skip
    """Strategies, separated by commas: those of --draft.strategy but 'model', and 'prompt-lookup', which copies what
    followed the last tokens where they first occurred."""
    budget: Annotated[list[Annotated[int, Field(ge=1, le=2_048)]], COMMAS, EACH_ONCE] = [8, 16, 32]  # noqa: RUF012
    """Most nodes (drafted tokens) of a step, separated by commas."""
    cost: str | None = None
    """What it costs to verify n tokens: 'flat', 'dense', 'cpu-moe', 'moe', or a file such as
    {"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}, which begins at 1 token; costs may be in any unit, for all are
    divided by the first. Drafts are then as long as they pay, up to the budget."""
    online: bool = False
    """Learn: what earlier outputs accepted helps later ones, and the model's own tokens are fed back."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Replay only so many traces of each file, the first ones."""
    graph: GraphConfig = GraphConfig()
    """Tokenizer, orders, and how the corpus is read."""
    draft: DraftConfig = DraftConfig()
    """How strategies draft; 'k' and 'strategy' are set by --budget and --strategy."""


def run(arguments: Sequence[str]) -> int:
    """Replay and print."""
    for argument in arguments:
        for flag, instead in _SET_BY_THE_BENCH.items():
            if argument.startswith(flag):
                raise ConfigError(f"{flag} is set by this bench itself; set {instead}")
    # By itself --graph is the section with the tokenizer.
    typed = [re.sub(r"^--graph(?==|$)", "--graph-path", argument) for argument in arguments]
    settings = load_settings(BenchReplaySettings, "bench replay", typed)
    cost = _checked_cost(settings)
    graph, workloads = _read(settings)
    results = _replay_all(settings, graph, cost, workloads)
    figures: dict[str, Any] = {
        "results": results,
        "graph_tokens": None if graph is None else graph.metadata.num_tokens,
        "max_order": None if graph is None else graph.max_order,
        "online": settings.online,
        "cost": settings.cost,
    }
    print_report("replay", figures, arguments, as_json=settings.json_output, columns={"results": _COLUMNS})
    return 0


def _checked_cost(settings: BenchReplaySettings) -> CostCurve | None:
    """Refuse settings that don't fit together; return the curve of --cost.

    Raises:
        ConfigError: they don't, or there is no such curve.
    """
    from speculant_graph.draft.cost import COST_CURVES, CostCurve
    from speculant_graph.draft.options import NEED_GRAPH

    if not settings.traces:
        raise ConfigError("--traces names no file; name JSON Lines with the texts 'prompt' and 'output'")
    if settings.corpus and settings.graph_path is not None:
        raise ConfigError("--corpus and --graph both name what to draft from; give one of them")
    for name in settings.strategy:
        if name in NEED_GRAPH and not settings.corpus and settings.graph_path is None:
            raise ConfigError(
                f"--strategy: '{name}' drafts from a graph alone; give --corpus or --graph, or leave it out"
            )
    if settings.cost is None or settings.cost in COST_CURVES:
        return COST_CURVES.get(settings.cost or "")
    if not Path(settings.cost).is_file():
        raise ConfigError(
            f"--cost: there is no curve and no file '{settings.cost}'; choose from {', '.join(COST_CURVES)}, "
            "or name a file"
        )
    return CostCurve.from_file(Path(settings.cost))


def _read(settings: BenchReplaySettings) -> tuple[NgramGraph | None, list[Workload]]:
    """Read the graph and the traces, and what may be refused at once before what takes long."""
    from speculant_graph.bench.texts import read_workloads
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.draft.pretraining import pretrain
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_graph.graph.ngrams import NgramGraph

    config = settings.graph
    graph = None if settings.graph_path is None else NgramGraph.load(settings.graph_path)
    begin("reading the tokenizer")
    is_named = graph is None or "tokenizer_name" in config.model_fields_set
    tokenizer = CorpusTokenizer.load(
        config.tokenizer_name if is_named or graph is None else graph.metadata.tokenizer.name,
        config.hf_token.get_secret_value() if config.hf_token else None,
        special_tokens="parse",  # a model wrote them
    )
    if graph is not None:
        tokenizer.require(graph.metadata.tokenizer)
    begin("tokenising the traces")
    workloads = read_workloads(settings.traces, tokenizer, settings.limit)
    if settings.corpus:
        builder = GraphBuilder(**config.model_dump())
        graph = builder.build_from_files(settings.corpus, progress=show_build(), calibrate=pretrain)
    return graph, workloads


def _replay_all(
    settings: BenchReplaySettings,
    graph: NgramGraph | None,
    cost: CostCurve | None,
    workloads: Sequence[Workload],
) -> list[dict[str, Any]]:
    """Replay every workload by every strategy at every budget; return the figures of each run, in this order."""
    from speculant_graph.bench.replay_loop import PROMPT_LOOKUP, PromptLookupDrafter, replay, replay_figures
    from speculant_graph.draft.session_drafter import SessionDrafter

    def fresh_drafter(strategy: str, budget: int) -> SessionDrafter | PromptLookupDrafter:
        if strategy == PROMPT_LOOKUP:
            return PromptLookupDrafter()
        config = DraftConfig.model_validate(settings.draft.model_dump() | {"strategy": strategy, "k": budget})
        return SessionDrafter(graph, config)

    results: list[dict[str, Any]] = []
    for workload, strategy, budget in product(workloads, settings.strategy, sorted(settings.budget)):
        tell = begin(f"{workload.name}, {strategy}, {counted(budget, 'node')}")
        # Pages are read before anything is timed.
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
        if each["strategy"] == PROMPT_LOOKUP
    }
    for each in results:
        baseline = baselines.get((each["workload"], each["budget"]))
        each["over_prompt_lookup"] = None if baseline is None else round(each["mean_accepted_tokens"] / baseline, 4)
    return results
