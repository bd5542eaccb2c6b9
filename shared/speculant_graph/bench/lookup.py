"""``speculant bench lookup``: drafting between other work, against plain Python; opening and sharing a graph file."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.config import GraphConfig
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.latency import Latencies
    from speculant_graph.bench.memory import Sharing
    from speculant_graph.graph.layout import UInt32Array
    from speculant_graph.graph.ngrams import NgramGraph

_K = 10
_PROCESSES = 3
_MOST_ROUNDS = 1 << 16
_CONTEXT_TOKENS = 16
_ALL, _SEEN, _HELD = slice(None), slice(0, None, 2), slice(1, None, 2)
"""Rounds by where their contexts are from, in turns."""


class BenchLookupSettings(CommandSettings):
    """Draft 10 tokens greedily again and again, with fresh contexts and other work in between, and time each call.

    A graph of the corpus's first tokens competes with a dict of dicts of the same tokens.
    """

    corpus: CliVariadicArg[list[TypedPath]]
    """Files, folders and patterns, as for 'speculant build'."""
    graph_path: Path | None = None
    """Measure this graph file (--graph for short), too; the figures of latency, opening and sharing are then of it."""
    held: Path | None = None
    """Text for the contexts; it is not counted, as what a model writes is not. Default: what follows in the corpus."""
    num_tokens: Annotated[int, Field(ge=100)] = 1_000_000
    """Tokens of the corpus that are counted, at least 100; the dict takes about 700 bytes for each."""
    seconds: Annotated[float, Field(gt=0)] = 20.0
    """How long to measure."""
    seed: int = 0
    """Seed of the choice of contexts."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """Tokenizer, orders, and how files are read."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status is 1 if the dict drafted anything else than the graph."""
    settings = load_settings(BenchLookupSettings, "bench lookup", [_long_name(argument) for argument in arguments])
    from speculant_graph.bench.memory import measure_sharing
    from speculant_graph.bench.report import print_report
    from speculant_graph.bench.tokens import bench_files, first_tokens
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.build.builder import build_from_token_ids
    from speculant_graph.graph.store import load_graph

    config = settings.graph
    files = bench_files(settings.corpus)
    held_files = [] if settings.held is None else bench_files([settings.held])
    tokenizer = CorpusTokenizer.load(
        config.tokenizer_name,
        config.hf_token.get_secret_value() if config.hf_token else None,
        config.special_tokens,
    )
    large = None
    if settings.graph_path is not None:
        large = load_graph(settings.graph_path)
        tokenizer.require(large.metadata.tokenizer)
    num_tokens = settings.num_tokens
    token_ids = first_tokens(tokenizer, files, config, num_tokens if held_files else 2 * num_tokens)
    held = first_tokens(tokenizer, held_files, config, num_tokens) if held_files else token_ids[num_tokens:]
    token_ids = token_ids[:num_tokens]
    small = build_from_token_ids(token_ids, tokenizer.fingerprint, max_order=config.max_order)
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        path = settings.graph_path
        if path is None:
            path = Path(folder) / "graph.pkl"
            small.save(path)
        sharing = measure_sharing(path, _PROCESSES)
        file_bytes = path.stat().st_size
    # A corpus that ends here has nothing to hold out.
    texts = [token_ids, held] if held.size >= _CONTEXT_TOKENS else [token_ids]
    latencies = _measure(settings, texts, small, large)
    figures = _figures(
        latencies, sharing, "small" if large is None else "large", _HELD if len(texts) == 2 else _ALL
    ) | {
        "graph_tokens": (large or small).metadata.num_tokens,
        "file_bytes": file_bytes,
        "dict_tokens": int(token_ids.size),
        "held_tokens": int(held.size) if len(texts) == 2 else 0,
    }
    if len(texts) == 2:
        figures |= _figures_of_counted_text(latencies)
    print_report("lookup", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0 if figures["identical"] else 1


def _long_name(argument: str) -> str:
    """Spell ``--graph`` out; by itself it is the name of the section with the tokenizer."""
    name, sign, value = argument.partition("=")
    return f"--graph-path{sign}{value}" if name == "--graph" else argument


def _measure(
    settings: BenchLookupSettings, texts: Sequence[UInt32Array], small: NgramGraph, large: NgramGraph | None
) -> Latencies:
    import numpy as np

    from speculant_graph.bench.dictionary import DictionaryGraph
    from speculant_graph.bench.latency import Contender, graph_contexts, measure_latencies, text_contexts

    random = np.random.default_rng(settings.seed)
    length = max(_CONTEXT_TOKENS, small.max_order)

    def contexts() -> UInt32Array:
        return text_contexts(texts, _MOST_ROUNDS, length, random)

    dictionary = DictionaryGraph(texts[0].tolist(), small.max_order)
    shared = contexts()
    contenders = [
        Contender("small", _drafter(small), shared),
        Contender("dict", lambda context: dictionary.draft(context, _K), shared),
        Contender("small_core", lambda context: small.draft_greedy(context, _K), contexts()),
    ]
    if large is not None:
        for name, draft in (("large", _drafter(large)), ("large_core", lambda c: large.draft_greedy(c, _K))):
            drawn = graph_contexts(large, _MOST_ROUNDS, random)
            if len(texts) == 2:
                drawn[1::2] = text_contexts(texts[1:], drawn[1::2].shape[0], large.max_order, random)
            contenders.append(Contender(name, draft, drawn))
    # The dict's millions of objects must not slow the other work's garbage collections down.
    gc.collect()
    gc.freeze()
    try:
        return measure_latencies(contenders, settings.seconds)
    finally:
        gc.unfreeze()


def _drafter(graph: NgramGraph) -> Callable[[list[int]], Sequence[int]]:
    from speculant_graph.draft.generator import DraftGenerator

    generator = DraftGenerator(graph)
    return lambda context: generator.draft(context, _K, "greedy").token_ids


def _figures_of_counted_text(latencies: Latencies) -> dict[str, Any]:
    """Return the figures with contexts that were counted: nearly all of them have one successor, so a dict is quick."""
    small_p50, dict_p50 = latencies.percentile("small", 50, _SEEN), latencies.percentile("dict", 50, _SEEN)
    return {
        "seen_small_p50_us": small_p50,
        "seen_dict_p50_us": dict_p50,
        "seen_dict_ratio": round(dict_p50 / small_p50, 2),
    }


def _figures(latencies: Latencies, sharing: Sharing, measured: str, rounds: slice) -> dict[str, Any]:
    def percentile(name: str, percent: float) -> float:
        return latencies.percentile(name, percent, rounds)

    small_p50, dict_p50 = percentile("small", 50), percentile("dict", 50)
    return {
        "p50_us": percentile(measured, 50),
        "p99_us": percentile(measured, 99),
        "core_p50_us": percentile(f"{measured}_core", 50),
        "core_p99_us": percentile(f"{measured}_core", 99),
        "small_p50_us": small_p50,
        "small_p99_us": percentile("small", 99),
        "small_core_p50_us": percentile("small_core", 50),
        "dict_p50_us": dict_p50,
        "dict_p99_us": percentile("dict", 99),
        "dict_ratio": round(dict_p50 / small_p50, 2),
        "identical": latencies.num_different == 0,
        "rounds": latencies.num_rounds,
        "open_ms": round(sharing.open_ms, 3),
        "processes": sharing.num_processes,
        "pss_bytes_per_process": sharing.pss_bytes,
        "rss_bytes_per_process": sharing.rss_bytes,
        "private_dirty_bytes_per_process": sharing.private_dirty_bytes,
    }


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    def pair(name: str) -> str:
        return f"{figures[f'{name}p50_us']:.1f} / {figures[f'{name}p99_us']:.1f} µs"

    return [
        (f"draft of {_K} tokens, graph of {figures['graph_tokens']:,} tokens, p50 / p99", pair("")),
        ("the core and its arguments alone", pair("core_")),
        (f"graph of {figures['dict_tokens']:,} tokens", pair("small_")),
        ("dict of dicts of the same tokens", pair("dict_")),
        ("dict / graph, p50", f"×{figures['dict_ratio']:.1f}"),
        *((name, f"×{figures['seen_dict_ratio']:.1f}")
          for name in ("the same after text that was counted",) if figures["held_tokens"]),
        ("both draft the same tokens", f"{'yes' if figures['identical'] else 'NO'}, {figures['rounds']:,} contexts"),
        ("opening the file in a new process", f"{figures['open_ms']:.2f} ms"),
        (f"its memory in {figures['processes']} processes: file, PSS each, private dirty",
         f"{figures['file_bytes'] / 1e6:,.1f}, {figures['pss_bytes_per_process'] / 1e6:,.1f}, "
         f"{figures['private_dirty_bytes_per_process'] / 1e6:,.1f} MB"),
    ]  # fmt: skip
