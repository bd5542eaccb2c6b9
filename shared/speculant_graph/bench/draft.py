"""``speculant bench draft``: what a draft and an accepted token cost in process, with and without other work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.lookup import _long_name
from speculant_graph.config import DraftConfig, GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.ngrams import NgramGraph

_FEWEST_DRAFTS = 64
"""Percentiles of fewer say nothing."""
_MORE_HELD_TOKENS = 1_000_000
"""Sessions are drawn from so many tokens more than one needs, if they are there."""


class BenchDraftSettings(CommandSettings):
    """Draft again and again for sessions that grow, and time each call, with other work in between and without.

    Sessions are pieces of the held-out text: a prompt of 500 to 2,000 tokens, then 1 to 4 accepted tokens a draft.
    Two trees in plain Python draft from the same graph.
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
    """Drafts that are timed, of each kind; batches are an eighth, drafts of the slow reference one in 64."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the choice of sessions, and of 'sampling'."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """Tokenizer, orders, and how files are read."""
    draft: DraftConfig = DraftConfig()
    """How strategies draft; 'k' and 'strategy' are those of each measurement."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchDraftSettings, "bench draft", [_long_name(argument) for argument in arguments])
    if bool(settings.corpus) == (settings.graph_path is not None):
        raise ConfigError("drafts come from one graph; give either --corpus or --graph")
    from speculant_graph.bench.draft_measure import DraftPlan, measure_drafts
    from speculant_graph.bench.report import print_report
    from speculant_graph.bench.tokens import bench_files, first_tokens
    from speculant_graph.corpus.tokenize import CorpusTokenizer

    plan = DraftPlan(settings.budget, settings.batch, settings.learned, settings.drafts, settings.seed, settings.draft)
    plan.require_room()
    config = settings.graph
    held_files = bench_files([settings.held])
    tokenizer = CorpusTokenizer.load(
        config.tokenizer_name, config.hf_token.get_secret_value() if config.hf_token else None
    )
    held = first_tokens(tokenizer, held_files, config, plan.num_held_tokens + _MORE_HELD_TOKENS)
    if held.size < plan.num_held_tokens:
        raise ConfigError(
            f"{settings.held} has {held.size} tokens, and {plan.num_held_tokens} are needed; "
            "name a longer text, or lower --learned or --drafts"
        )
    figures = measure_drafts(plan, _graph(settings, tokenizer), held)
    print_report("draft", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0


def _graph(settings: BenchDraftSettings, tokenizer: CorpusTokenizer) -> NgramGraph:
    from speculant_graph.bench.tokens import bench_files
    from speculant_graph.graph.builder import GraphBuilder
    from speculant_graph.graph.store import load_graph

    if settings.graph_path is None:
        return GraphBuilder(**settings.graph.model_dump()).build_from_files(bench_files(settings.corpus))
    graph = load_graph(settings.graph_path)
    tokenizer.require(graph.metadata.tokenizer)
    return graph


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    def pair(of: dict[str, Any], name: str = "") -> str:
        return f"{of[f'{name}p50_us']:.1f} / {of[f'{name}p99_us']:.1f}"

    batch, same, compared = figures["batch"], figures["python_same_drafts"], figures["python_drafts"]
    return [
        ("graph", f"{figures['tokens']:,} tokens, {figures['nodes']:,} n-grams"),
        (f"draft of at most {figures['budget']} nodes, p50 / p99", "between other work; alone"),
        *((f"  {strategy}, {of['nodes']:.1f} nodes", f"{pair(of)}; {pair(of, 'tight_')} µs")
          for strategy, of in figures["by_strategy"].items()),
        (f"  tree, {figures['learned_tokens']:,} tokens learned", f"{pair(figures, 'learned_tree_')} µs"),
        (f"trees for {batch} in one call, p50; over {batch} calls",
         f"{figures['batch_p50_us']:,.1f} µs; ×{figures['batch_ratio']:.2f}"),
        ("accepting 1 to 4 tokens, p50", f"{figures['accept_p50_us']:.1f}; {figures['tight_accept_p50_us']:.1f} µs"),
        ("  a token, mean", f"{figures['learn_us_per_token']:.2f}; {figures['tight_learn_us_per_token']:.2f} µs"),
        ("  a token of a prompt, mean",
         f"{figures['prompt_ns_per_token']:,.0f}; {figures['tight_prompt_ns_per_token']:,.0f} ns"),
        ("plain Python, from the graph alone, p50; over the tree",
         f"{figures['graph_tree_p50_us']:,.1f} µs; ×{figures['graph_tree_ratio']:.1f}"),
        ("plain Python, slow reference, p50; over the tree",
         f"{figures['python_tree_p50_us']:,.1f} µs; ×{figures['python_ratio']:,.0f}"),
        ("  it drafts the same", f"{same} of {compared}"),
    ]  # fmt: skip
