"""``speculant bench build``: times a whole graph build, and compares n-gram counting with plain Python."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.report import alternate, print_report, show_build
from speculant_graph.config import GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import ReportingSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.types import Fingerprint

Counts = Mapping[tuple[int, ...], Mapping[int, int]]
"""Counts of next tokens, keyed by context; a context has from 1 to N tokens."""

_ROUNDS = 2


class BenchBuildSettings(ReportingSettings):
    """Time a graph build; on the words of Python's sources, compare n-gram counting with a dict of dicts."""

    corpus: CliVariadicArg[list[TypedPath]]
    """Corpus files, folders and patterns to build the graph from, as for 'speculant build'."""
    dict_tokens: Annotated[int, Field(ge=100)] = 1_000_000
    """Number of tokens for the comparison with plain Python, at least 100. Counting a million tokens takes 20 s and a
    gigabyte of memory."""
    graph: GraphConfig = GraphConfig()
    """Settings for building the graph."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchBuildSettings, "bench build", arguments)
    from speculant_graph.bench.texts import words_of_standard_library
    from speculant_graph.corpus.file_patterns import STANDARD_INPUT

    if STANDARD_INPUT in settings.corpus:
        raise ConfigError("the bench can't read standard input twice", fix="name files", field="corpus")
    built = _built(settings.corpus, settings.graph)
    token_ids, fingerprint = words_of_standard_library(settings.dict_tokens)
    figures = built | {
        "tokens_per_cpu_s": round(built["tokens"] / built["count_cpu_s"]),
        **compare_counting(token_ids[: settings.dict_tokens], fingerprint, settings.graph.max_order),
    }
    print_report("build", figures, arguments, as_json=settings.json_output)
    return 0


def _built(files: Sequence[Path], config: GraphConfig) -> dict[str, Any]:
    """Build a graph as ``speculant build`` does, and return the build's time and memory and the graph's size."""
    from speculant_graph.graph.build.builder import GraphBuilder

    builder = GraphBuilder(**config.model_dump())
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        path = Path(folder, "graph.pkl")
        metadata = builder.build(files, path, progress=show_build()).metadata
        summary = metadata.summary(path.stat().st_size)
    assert builder.report is not None
    return summary | asdict(builder.report)


def compare_counting(token_ids: list[int], fingerprint: Fingerprint, max_order: int) -> dict[str, float]:
    """Count tokens with this library and with plain Python in interleaved trials; compare the CPU seconds.

    Args:
        token_ids: the tokens to count.
        fingerprint: their tokenizer.
        max_order: longest context.
    """
    from speculant_graph.graph.build.builder import build_from_token_ids

    trials: dict[str, Callable[[int], float]] = {
        "our": lambda _: _cpu_s(lambda: build_from_token_ids(token_ids, fingerprint, max_order=max_order)),
        "dict": lambda _: _cpu_s(lambda: count_by_hand(token_ids, max_order)),
        "fast_dict": lambda _: _cpu_s(lambda: count_by_iterators(token_ids, max_order)),
    }
    seconds = alternate(trials, _ROUNDS)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {f"{name}_cpu_ratio": round(median[name] / median["our"], 2) for name in ("dict", "fast_dict")}
    return {"dict_tokens": len(token_ids), **{f"{name}_cpu_s": round(s, 3) for name, s in median.items()}, **ratios}


def count_by_hand(token_ids: Sequence[int], max_order: int) -> Counts:
    """Count all n-grams of a list of token ids in the obvious way, with a dict of dicts."""
    contexts: defaultdict[tuple[int, ...], defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for order in range(1, max_order + 1):
        for end in range(order, len(token_ids)):
            contexts[tuple(token_ids[end - order : end])][token_ids[end]] += 1
    return contexts


def count_by_iterators(token_ids: Sequence[int], max_order: int) -> Counts:
    """Return the counts of :func:`count_by_hand`, but count as fast as Python can, with slices and C iterators."""
    contexts: dict[tuple[int, ...], dict[int, int]] = {}
    for order in range(1, max_order + 1):
        columns = [token_ids[start:] for start in range(order)]
        for context, token_id in zip(zip(*columns, strict=False), token_ids[order:], strict=False):
            successors = contexts.setdefault(context, {})
            successors[token_id] = successors.get(token_id, 0) + 1
    return contexts


def _cpu_s(function: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    result = function()
    end = time.process_time()
    del result  # freeing it is not part of counting
    return end - start
