"""``speculant bench replay``: what drafts would have saved on recorded outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.arguments import COMMAS, EACH_ONCE, checked_arguments
from speculant_graph.config import DraftConfig, GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.progress import BenchProgress
    from speculant_graph.bench.replay_loop import PromptLookupDrafter
    from speculant_graph.bench.traces import Workload
    from speculant_graph.draft.cost import CostCurve
    from speculant_graph.draft.session_drafter import SessionDrafter
    from speculant_graph.graph.ngrams import NgramGraph

ReplayStrategyName = Literal[
    "greedy", "sampling", "adaptive", "tree", "specexec", "prompt-lookup"
]  # fmt: skip
"""What can be replayed: the strategies of n-grams, and the baseline."""

_UNHEEDED = {
    "--draft.k": "set --budget, such as --budget 8,16,32",
    "-k": "set --budget, such as --budget 8,16,32",
    "--draft.strategy": "set --strategy, such as --strategy tree,adaptive",
}
_WARM_UP_TOKENS = 16


class BenchReplaySettings(CommandSettings):
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
    """Draft from this graph file (--graph for short) instead of counting a corpus."""
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
    fixed: bool = False
    """Use --cost to price the drafts alone; their length does not depend on it."""
    online: bool = False
    """Learn: what earlier outputs accepted helps later ones, and the model's own tokens are fed back."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Replay only so many traces of each file, the first ones."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of strategies that draw and of the intervals."""
    plot: Path | None = None
    """Draw tokens per step by budget into this file, .png or .svg; with --cost, the relative speed."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """Tokenizer, orders, and how the corpus is read."""
    draft: DraftConfig = DraftConfig()
    """How strategies draft; 'k' and 'strategy' are set by --budget and --strategy."""


def run(arguments: Sequence[str]) -> int:
    """Replay and print."""
    settings = load_settings(BenchReplaySettings, "bench replay", checked_arguments(arguments, _UNHEEDED))
    cost = _checked_cost(settings)
    from speculant_graph.bench.plot import check_plot
    from speculant_graph.bench.progress import show_progress
    from speculant_graph.bench.replay_report import plot_replay, print_replay

    if settings.plot is not None:
        check_plot(settings.plot)
    with show_progress() as progress:
        graph, workloads = _read(settings, progress)
        results = _replay_all(settings, graph, cost, workloads, progress)
    figures: dict[str, Any] = {
        "results": results,
        "graph_tokens": None if graph is None else graph.metadata.num_tokens,
        "max_order": None if graph is None else graph.max_order,
        "online": settings.online,
        "cost": settings.cost,
        "cost_aware": cost is not None and not settings.fixed,
    }
    print_replay(figures, arguments, as_json=settings.json_output)
    if settings.plot is not None:  # last, for a full disk shall not cost the figures
        plot_replay(settings.plot, results)
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
    if "corpus" in settings.model_fields_set and not settings.corpus:
        raise ConfigError("--corpus names no file; name some, or leave it out to draft from the sequences alone")
    if settings.corpus and settings.graph_path is not None:
        raise ConfigError("--corpus and --graph both name what to draft from; give one of them")
    for name in settings.strategy:
        if name in NEED_GRAPH and not settings.corpus and settings.graph_path is None:
            raise ConfigError(
                f"--strategy: '{name}' drafts from a graph alone; give --corpus or --graph, or leave it out"
            )
    if settings.cost is None:
        if settings.fixed:
            raise ConfigError("--fixed has nothing to price drafts by; set --cost")
        return None
    if settings.cost in COST_CURVES:
        return COST_CURVES[settings.cost]
    if not Path(settings.cost).is_file():
        raise ConfigError(
            f"--cost: there is no curve and no file '{settings.cost}'; choose from {', '.join(COST_CURVES)}, "
            "or name a file"
        )
    return CostCurve.from_file(Path(settings.cost))


def _read(settings: BenchReplaySettings, progress: BenchProgress) -> tuple[NgramGraph | None, list[Workload]]:
    """Read the graph and the traces, and what may be refused at once before what takes long."""
    from speculant_graph.bench.traces import read_workloads
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.draft.pretraining import pretrain
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_graph.graph.ngrams import NgramGraph

    config = settings.graph
    graph = None if settings.graph_path is None else NgramGraph.load(settings.graph_path)
    progress.begin("reading the tokenizer")
    is_named = graph is None or "tokenizer_name" in config.model_fields_set
    tokenizer = CorpusTokenizer.load(
        config.tokenizer_name if is_named or graph is None else graph.metadata.tokenizer.name,
        config.hf_token.get_secret_value() if config.hf_token else None,
        special_tokens="parse",  # a model wrote them
    )
    if graph is not None:
        tokenizer.require(graph.metadata.tokenizer)
    progress.begin("tokenising the traces")
    workloads = read_workloads(settings.traces, tokenizer, settings.limit)
    if settings.corpus:
        builder = GraphBuilder(**config.model_dump())
        graph = builder.build_from_files(settings.corpus, progress=progress.show_build, calibrate=pretrain)
    return graph, workloads


def _replay_all(
    settings: BenchReplaySettings,
    graph: NgramGraph | None,
    cost: CostCurve | None,
    workloads: Sequence[Workload],
    progress: BenchProgress,
) -> list[dict[str, Any]]:
    """Replay every workload by every strategy at every budget; return the figures of each run, in this order."""
    from speculant_graph.bench.replay_figures import compare_with_prompt_lookup, replay_figures
    from speculant_graph.bench.replay_loop import PROMPT_LOOKUP, PromptLookupDrafter, ReplayOptions, replay
    from speculant_graph.draft.session_drafter import SessionDrafter
    from speculant_graph.view.formatting import counted

    def fresh_drafter(strategy: str, budget: int) -> SessionDrafter | PromptLookupDrafter:
        if strategy == PROMPT_LOOKUP:
            return PromptLookupDrafter()
        config = DraftConfig.model_validate(settings.draft.model_dump() | {"strategy": strategy, "k": budget})
        return SessionDrafter(graph, config)

    results: list[dict[str, Any]] = []
    for workload, strategy, budget in product(workloads, settings.strategy, sorted(settings.budget)):
        label = f"{workload.name}, {strategy}, {counted(budget, 'node')}"
        tell = progress.teller(label)
        options = ReplayOptions(budget, settings.online, None if settings.fixed else cost, settings.seed)
        # Pages are read before anything is timed.
        first = workload.traces[0]
        warm_up = replace(first, output=first.output[:_WARM_UP_TOKENS])
        replay(fresh_drafter(strategy, budget), [warm_up], options)
        replayed = replay(fresh_drafter(strategy, budget), workload.traces, options, tell)
        figures = replay_figures(replayed, cost, settings.seed)
        progress.tell(f"{label}: {figures['mean_accepted_tokens']:.3f} tokens per step")
        results.append({"workload": workload.name, "strategy": strategy, "budget": budget, **figures})
    compare_with_prompt_lookup(results)
    return results
