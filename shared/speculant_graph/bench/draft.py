"""``speculant bench draft``: what a draft and an accepted token cost in process, with and without other work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.arguments import checked_arguments
from speculant_graph.config import DraftConfig, GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings
from speculant_graph.view.wording import counted

if TYPE_CHECKING:
    from speculant_graph.bench.draft_measure import DraftPlan
    from speculant_graph.bench.progress import BenchProgress
    from speculant_graph.graph.layout import UInt32Array
    from speculant_graph.graph.ngrams import NgramGraph

_FEWEST_DRAFTS = 64
"""Percentiles of fewer say nothing."""
_MORE_HELD_TOKENS = 1_000_000
"""Sessions are drawn from so many tokens more than one needs, if they are there."""
_UNHEEDED = {
    "--draft.k": "set --budget",
    "-k": "set --budget",
    "--draft.strategy": "leave it out, for it measures each",
    "--strategy": "leave it out, for it measures each",
}


class BenchDraftSettings(CommandSettings):
    """Draft again and again for sessions that grow, and time each call, with other work in between and without.

    Sessions are pieces of the held-out text: a prompt of 500 to 2,000 tokens, then 1 to 4 accepted tokens a draft.
    Trees in plain Python draft from the same graph.
    """

    corpus: CliVariadicArg[list[TypedPath]] = []  # noqa: RUF012 - every instance gets its own copy
    """Files, folders and patterns that are counted into a graph, as for 'speculant build'."""
    graph_path: Path | None = None
    """Draft from this graph file (--graph for short) instead of counting a corpus."""
    held: Path
    """Text of the sessions, and of what was learned before; it must not be in the corpus."""
    budget: Annotated[int, Field(ge=1, le=1_024)] = 16
    """Most nodes of a draft."""
    batch: Annotated[int, Field(ge=1, le=1_024)] = 32
    """Sequences of a call that drafts for many."""
    learned: Annotated[int, Field(ge=1)] = 200_000
    """Tokens that earlier sequences accepted, for the drafts that gain by them."""
    drafts: Annotated[int, Field(ge=_FEWEST_DRAFTS)] = 2_048
    """Drafts timed of each kind, at least 64; batches are an eighth."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the choice of sessions, and of 'sampling'."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """Tokenizer, orders, and how files are read."""
    draft: DraftConfig = DraftConfig()
    """How strategies draft; 'k' is set by --budget, and 'strategy' by the bench, which measures each."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchDraftSettings, "bench draft", checked_arguments(arguments, _UNHEEDED))
    if bool(settings.corpus) == (settings.graph_path is not None):
        raise ConfigError("drafts come from one graph; give either --corpus or --graph")
    from speculant_graph.bench.draft_measure import DraftPlan, measure_drafts
    from speculant_graph.bench.progress import show_progress
    from speculant_graph.bench.report import print_report

    plan = DraftPlan(settings.budget, settings.batch, settings.learned, settings.drafts, settings.seed, settings.draft)
    plan.require_room()
    with show_progress() as progress:
        graph, held = _read(settings, plan, progress)
        figures = measure_drafts(plan, graph, held, progress)
    print_report("draft", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0


def _read(settings: BenchDraftSettings, plan: DraftPlan, progress: BenchProgress) -> tuple[NgramGraph, UInt32Array]:
    """Read the held-out text and the graph, and what may be refused at once before what takes long."""
    from speculant_graph.bench.tokens import bench_files, first_tokens
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_graph.graph.store import load_graph

    config = settings.graph
    held_files, corpus_files = bench_files([settings.held]), bench_files(settings.corpus) if settings.corpus else []
    graph = None if settings.graph_path is None else load_graph(settings.graph_path)
    progress.begin("reading the tokenizer")
    tokenizer = CorpusTokenizer.load(
        config.tokenizer_name,
        config.hf_token.get_secret_value() if config.hf_token else None,
        config.special_tokens,
    )
    if graph is not None:
        tokenizer.require(graph.metadata.tokenizer)
    progress.begin("tokenising the held-out text")
    held = first_tokens(tokenizer, held_files, config, plan.num_held_tokens + _MORE_HELD_TOKENS)
    if held.size < plan.num_held_tokens:
        raise ConfigError(
            f"{settings.held} has {held.size:,} tokens, and {plan.num_held_tokens:,} are needed; "
            "name a longer text, or lower --learned or --drafts"
        )
    if graph is None:
        graph = GraphBuilder(**config.model_dump()).build_from_files(corpus_files, progress=progress.show_build)
    return graph, held


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    def pair(of: dict[str, Any], name: str = "") -> str:
        return f"{of[f'{name}p50_us']:.1f} / {of[f'{name}p99_us']:.1f}"

    batch = figures["batch"]
    return [
        ("graph", f"{figures['tokens']:,} tokens, {figures['nodes']:,} n-grams"),
        ("two figures", "between other work; by itself"),
        (f"a draft of up to {counted(figures['budget'], 'node')}", "median / 99th percentile"),
        *((f"  {strategy}, {of['nodes']:.1f} drafted on average", f"{pair(of)}; {pair(of, 'tight_')} µs")
          for strategy, of in figures["by_strategy"].items()),
        (f"  tree, {figures['learned_tokens']:,} tokens learned before", f"{pair(figures, 'learned_tree_')} µs"),
        ("taking over what was accepted", ""),
        ("  1 to 4 tokens, median", f"{figures['accept_p50_us']:.1f}; {figures['tight_accept_p50_us']:.1f} µs"),
        ("  the same per token, mean",
         f"{figures['learn_us_per_token']:.2f}; {figures['tight_learn_us_per_token']:.2f} µs"),
        ("  prompts per token, mean",
         f"{figures['prompt_ns_per_token']:,.0f}; {figures['tight_prompt_ns_per_token']:,.0f} ns"),
        ("compared with one tree, between other work", "median"),
        (f"  {counted(batch, 'tree')} in one call; over so many calls",
         f"{figures['batch_p50_us']:,.1f} µs; ×{figures['batch_ratio']:.2f}"),
        ("  plain Python, graph alone; over ours",
         f"{figures['graph_tree_p50_us']:,.1f} µs; ×{figures['graph_tree_ratio']:.1f}"),
    ]  # fmt: skip
