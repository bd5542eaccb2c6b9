"""``speculant bench replay``: what drafts would have saved on recorded outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.arguments import checked_arguments
from speculant_graph.bench.replay_baselines import PROMPT_LOOKUP
from speculant_graph.bench.replay_options import check_graphless, check_plot, load_cost, parse_budgets, parse_strategies
from speculant_graph.config import DraftConfig, GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.progress import BenchProgress
    from speculant_graph.bench.traces import Workload
    from speculant_graph.graph.ngrams import NgramGraph

_UNHEEDED = {
    "--draft.k": "set --budget, such as --budget 8,16,32",
    "-k": "set --budget, such as --budget 8,16,32",
    "--draft.strategy": "set --strategy, such as --strategy tree,adaptive",
}


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
    strategy: str = f"adaptive,tree,{PROMPT_LOOKUP}"
    """Strategies, separated by commas: those that --draft.strategy names, and 'prompt-lookup', which copies what
    followed the last tokens where they first occurred."""
    budget: str = "8,16,32"
    """Most nodes (drafted tokens) of a step, separated by commas."""
    cost: str | None = None
    """What it costs to verify n tokens: 'flat', 'dense', 'cpu-moe', 'moe', or a file such as
    {"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}, which begins at 1 token; costs may be in any unit, for all are
    divided by the first. Drafts are then as long as they pay, up to the budget."""
    fixed: bool = False
    """Use --cost to price the drafts alone; their length knows nothing of it."""
    online: bool = False
    """Learn: what earlier outputs accepted helps later ones, and the model's own tokens are fed back."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Replay only so many traces of each file, the first ones."""
    shuffle: bool = False
    """Put the tokens of every output into random order: text where nothing helps."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of --shuffle, of strategies that draw and of the intervals."""
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
    strategies, budgets = parse_strategies(settings.strategy), parse_budgets(settings.budget)
    _check_files(settings)
    if not settings.corpus and settings.graph_path is None:
        check_graphless(strategies)
    if settings.plot is not None:
        check_plot(settings.plot)
    cost = None if settings.cost is None else load_cost(settings.cost)
    if settings.fixed and cost is None:
        raise ConfigError("--fixed has nothing to price drafts by; set --cost")
    from speculant_graph.bench.progress import show_progress
    from speculant_graph.bench.replay_report import print_replay
    from speculant_graph.bench.replay_runs import ReplayRuns

    with show_progress() as progress:
        graph, workloads = _read(settings, progress)
        runs = ReplayRuns(graph, settings.draft, cost, not settings.fixed, settings.online, settings.seed)
        results = runs.replay_all(workloads, strategies, budgets, progress)
    figures: dict[str, Any] = {
        "results": results,
        "graph_tokens": None if graph is None else graph.metadata.num_tokens,
        "max_order": None if graph is None else graph.max_order,
        "online": settings.online,
        "shuffled": settings.shuffle,
        "cost": settings.cost,
        "cost_aware": cost is not None and not settings.fixed,
    }
    print_replay(figures, arguments, as_json=settings.json_output)
    if settings.plot is not None:  # last, for a full disk shall not cost the figures
        from speculant_graph.bench.replay_plot import plot_replay
        from speculant_graph.graph.export import replacing

        with replacing(settings.plot) as temporary:
            plot_replay(results, temporary, settings.plot.suffix.lower().removeprefix("."))
    return 0


def _check_files(settings: BenchReplaySettings) -> None:
    if not settings.traces:
        raise ConfigError("--traces names no file; name JSON Lines with the texts 'prompt' and 'output'")
    if "corpus" in settings.model_fields_set and not settings.corpus:
        raise ConfigError("--corpus names no file; name some, or leave it out to draft from the sequences alone")
    if settings.corpus and settings.graph_path is not None:
        raise ConfigError("--corpus and --graph both say what to draft from; give one of them")


def _read(settings: BenchReplaySettings, progress: BenchProgress) -> tuple[NgramGraph | None, list[Workload]]:
    """Read the graph and the traces, and what may be refused at once before what takes long."""
    from speculant_graph.bench.traces import read_workloads
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.store import load_graph

    config = settings.graph
    graph = None if settings.graph_path is None else load_graph(settings.graph_path)
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
    if settings.shuffle:
        workloads = [workload.shuffled(settings.seed) for workload in workloads]
    if settings.corpus:
        graph = _build(settings, progress)
    return graph, workloads


def _build(settings: BenchReplaySettings, progress: BenchProgress) -> NgramGraph:
    from speculant_graph.draft.pretraining import pretrain
    from speculant_graph.graph.build.builder import GraphBuilder

    builder = GraphBuilder(**settings.graph.model_dump())
    return builder.build_from_files(settings.corpus, progress=progress.show_build, calibrate=pretrain)
