"""``speculant bench replay``: what drafts would have saved on recorded outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.replay_baselines import PROMPT_LOOKUP
from speculant_graph.config import DraftConfig, GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings
from speculant_graph.types import StrategyName

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import ReplayProgress
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.draft.cost import CostCurve
    from speculant_graph.graph.ngrams import NgramGraph

STRATEGIES = (*get_args(StrategyName), PROMPT_LOOKUP)
"""What can be replayed."""

_MOST_NODES = 1_024
_PLOT_ENDINGS = (".png", ".svg")


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
    """Strategies, separated by commas: those of --draft.strategy, and 'prompt-lookup', which copies what followed the
    last tokens where they first occurred."""
    budget: str = "8,16,32"
    """Most nodes of a draft, separated by commas."""
    cost: str | None = None
    """What it costs to verify n tokens: 'flat', 'dense', 'cpu-moe', 'moe', or a file such as
    {"tokens": [1, 2, 4], "relative": [1.0, 1.2, 1.5]}. Drafts are then as long as they pay, up to the budget."""
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
    """Draw tokens per step by budget into this file, .png or .svg."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """Tokenizer, orders, and how the corpus is read."""
    draft: DraftConfig = DraftConfig()
    """How strategies draft; 'k' and 'strategy' are those of each run."""


def run(arguments: Sequence[str]) -> int:
    """Replay and print."""
    settings = load_settings(BenchReplaySettings, "bench replay", [_long_name(argument) for argument in arguments])
    strategies, budgets = parse_strategies(settings.strategy), parse_budgets(settings.budget)
    if settings.corpus and settings.graph_path is not None:
        raise ConfigError("--corpus and --graph both say what to draft from; give one of them")
    if not settings.corpus and settings.graph_path is None:
        _check_graphless(strategies)
    if settings.plot is not None:
        _check_plot(settings.plot)
    cost = None if settings.cost is None else load_cost(settings.cost)
    if settings.fixed and cost is None:
        raise ConfigError("--fixed has nothing to price drafts by; set --cost")
    from speculant_graph.bench.replay_progress import show_progress
    from speculant_graph.bench.replay_report import print_replay
    from speculant_graph.bench.replay_runs import ReplayRuns
    from speculant_graph.bench.replay_traces import read_workloads
    from speculant_graph.corpus.tokenize import CorpusTokenizer

    config = settings.graph
    tokenizer = CorpusTokenizer.load(
        config.tokenizer_name, config.hf_token.get_secret_value() if config.hf_token else None
    )
    workloads = read_workloads(settings.traces, tokenizer, settings.limit)
    if settings.shuffle:
        workloads = [workload.shuffled(settings.seed) for workload in workloads]
    with show_progress() as progress:
        graph = _graph(settings, tokenizer, progress)
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
    if settings.plot is not None:
        from speculant_graph.bench.replay_plot import plot_replay
        from speculant_graph.graph.export import replacing

        with replacing(settings.plot) as temporary:
            plot_replay(results, temporary, settings.plot.suffix.lower().removeprefix("."))
    print_replay(figures, arguments, as_json=settings.json_output)
    return 0


def parse_strategies(text: str) -> list[str]:
    """Return the strategies of a list with commas, each once.

    Raises:
        ConfigError: there is no such strategy.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in STRATEGIES:
            raise ConfigError(f"--strategy: there is no strategy '{name}'; choose from {', '.join(STRATEGIES)}")
    return names


def parse_budgets(text: str) -> list[int]:
    """Return the budgets of a list with commas, each once, ascending.

    Raises:
        ConfigError: one is no whole number, or too small or large.
    """
    budgets = set()
    for item in text.split(","):
        number = item.strip()
        if not (number.isascii() and number.isdigit()):
            raise ConfigError(f"--budget: '{number}' is no whole number; write for example 8,16,32")
        if not 1 <= int(number) <= _MOST_NODES:
            raise ConfigError(
                f"--budget: {number} is not a number of nodes from 1 to {_MOST_NODES:,}; choose such ones"
            )
        budgets.add(int(number))
    return sorted(budgets)


def load_cost(name: str) -> CostCurve:
    """Return the curve of a name, or of a file.

    Raises:
        ConfigError: there is neither a curve nor a file of this name, or the file holds no curve.
    """
    from speculant_graph.draft.cost import COST_CURVES, CostCurve

    if name in COST_CURVES:
        return COST_CURVES[name]
    if not Path(name).is_file():
        raise ConfigError(
            f"--cost: there is no curve and no file '{name}'; choose from {', '.join(COST_CURVES)}, or name a file"
        )
    return CostCurve.from_file(Path(name))


def _long_name(argument: str) -> str:
    """Spell ``--graph`` out; by itself it is the name of the section with the tokenizer."""
    name, sign, value = argument.partition("=")
    return f"--graph-path{sign}{value}" if name == "--graph" else argument


def _check_graphless(strategies: Sequence[str]) -> None:
    from speculant_graph.draft.generator import CHAIN_STRATEGY_NAMES

    for name in strategies:
        if name in CHAIN_STRATEGY_NAMES:
            raise ConfigError(
                f"--strategy: '{name}' drafts from a graph alone; give --corpus or --graph, or leave it out"
            )


def _check_plot(path: Path) -> None:
    """Complain of the picture before minutes of work, not after them."""
    if path.suffix.lower() not in _PLOT_ENDINGS:
        raise ConfigError(f"--plot: {path} ends in none of {', '.join(_PLOT_ENDINGS)}; choose one of these")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--plot: there is no folder {path.parent} to write to; make it or choose another path")
    from speculant_graph.extras import needed_for

    with needed_for("drawing pictures", "viz"):
        import matplotlib.figure  # noqa: F401


def _graph(settings: BenchReplaySettings, tokenizer: CorpusTokenizer, progress: ReplayProgress) -> NgramGraph | None:
    if settings.graph_path is not None:
        from speculant_graph.graph.store import load_graph

        graph = load_graph(settings.graph_path)
        tokenizer.require(graph.metadata.tokenizer)
        return graph
    if not settings.corpus:
        return None
    from speculant_graph.draft.pretraining import pretrain
    from speculant_graph.graph.builder import GraphBuilder

    builder = GraphBuilder(**settings.graph.model_dump())
    return builder.build_from_files(
        settings.corpus,
        progress=lambda build: progress.show(f"graph: {build.phase}", build.done, build.total),
        calibrate=pretrain,
    )
