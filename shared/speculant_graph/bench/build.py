"""``speculant bench build``: a whole build in a process of its own, and counting against plain Python."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.bench.report import BenchSettings, print_report
from speculant_graph.config import GraphConfig
from speculant_graph.errors import ConfigError, GraphError
from speculant_graph.settings import TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.types import Fingerprint

Counts = Mapping[tuple[int, ...], Mapping[int, int]]
"""Contexts of 1 to N tokens -> next token -> count."""

_ROUNDS = 2
_COPIED = (
    "tokens", "documents", "files", "text_bytes", "max_order", "tokenize_s", "count_s", "save_s", "total_s",
    "count_cpu_s", "peak_anon_bytes", "file_bytes", "nodes",
)  # fmt: skip


class BenchBuildSettings(BenchSettings):
    """Build a graph in a process of its own, and count the words of Python's own sources against a dict of dicts."""

    corpus: CliVariadicArg[list[TypedPath]]
    """Files, folders and patterns, as for 'speculant build'."""
    dict_tokens: Annotated[int, Field(ge=100)] = 1_000_000
    """Tokens that the comparison with plain Python counts, at least 100; a million takes 20 s and a gigabyte."""
    graph: GraphConfig = GraphConfig()
    """How to build."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchBuildSettings, "bench build", arguments)
    from speculant_graph.bench.texts import words_of_standard_library
    from speculant_graph.corpus.files import STANDARD_INPUT, list_corpus_files

    files = list_corpus_files(settings.corpus)
    if STANDARD_INPUT in files:
        raise ConfigError("a bench can't be repeated with standard input; name files")
    built = build_in_child(files, settings.graph)
    token_ids, fingerprint = words_of_standard_library(settings.dict_tokens)
    compared = compare_counting(token_ids[: settings.dict_tokens], fingerprint, settings.graph.max_order)
    figures = {name: built[name] for name in _COPIED} | {
        "tokens_per_cpu_s": round(built["tokens"] / built["count_cpu_s"]),
        "bytes_per_node": round(built["file_bytes"] / built["nodes"], 2),
        "bytes_per_token": round(built["file_bytes"] / built["tokens"], 2),
        **compared,
    }
    print_report("build", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0


def build_in_child(files: Sequence[Path], config: GraphConfig) -> dict[str, Any]:
    """Run ``speculant build`` in a new process and return the object that it prints.

    Its bars go to this process's standard error.

    Raises:
        GraphError: the build failed; it has logged why.
    """
    values = config.model_dump() | {"hf_token": config.hf_token and config.hf_token.get_secret_value()}
    # By the environment: it is the one way that takes every setting, and no secret is seen in a list of processes.
    environment = {
        f"SPECULANT_GRAPH__{name.upper()}": str(value) for name, value in values.items() if value is not None
    }
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        command = [sys.executable, "-m", "speculant_graph.cli.main", "build", "--json", "-o", f"{folder}/graph.pkl"]
        child = subprocess.run(
            [*command, "--", *map(str, files)],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if child.returncode != 0:
        raise GraphError(f"the build ended with status {child.returncode}; see its message above")
    built: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return built


def compare_counting(token_ids: list[int], fingerprint: Fingerprint, max_order: int) -> dict[str, float]:
    """Count the same tokens by this library and by plain Python, in interleaved trials, and compare CPU seconds.

    Args:
        token_ids: what is counted.
        fingerprint: their tokenizer.
        max_order: longest context.
    """
    from speculant_graph.graph.build.builder import build_from_token_ids

    trials: dict[str, Callable[[], object]] = {
        "our": lambda: build_from_token_ids(token_ids, fingerprint, max_order=max_order),
        "dict": lambda: count_by_hand(token_ids, max_order),
        "fast_dict": lambda: count_by_iterators(token_ids, max_order),
    }
    seconds: dict[str, list[float]] = {name: [] for name in trials}
    for _ in range(_ROUNDS):
        for name, count in trials.items():
            seconds[name].append(_cpu_s(count))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {f"{name}_cpu_ratio": round(median[name] / median["our"], 2) for name in ("dict", "fast_dict")}
    return {"dict_tokens": len(token_ids), **{f"{name}_cpu_s": round(s, 3) for name, s in median.items()}, **ratios}


def count_by_hand(token_ids: Sequence[int], max_order: int) -> Counts:
    """Count all n-grams of a list of token ids in the obvious way."""
    contexts: defaultdict[tuple[int, ...], defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for order in range(1, max_order + 1):
        for end in range(order, len(token_ids)):
            contexts[tuple(token_ids[end - order : end])][token_ids[end]] += 1
    return contexts


def count_by_iterators(token_ids: Sequence[int], max_order: int) -> Counts:
    """Return the same counts, made as fast as plain Python can: slices and tuples come from iterators written in C."""
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
    del result  # taking it apart is not part of counting
    return end - start


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("corpus", f"{figures['text_bytes'] / 1e6:,.1f} MB, {figures['tokens']:,} tokens"),
        ("tokenising", f"{figures['tokenize_s']:.2f} s"),
        ("counting", f"{figures['count_s']:.2f} s"),
        ("all", f"{figures['total_s']:.2f} s"),
        ("counting, tokens per CPU second", f"{figures['tokens_per_cpu_s']:,}"),
        ("peak of anonymous memory", f"{figures['peak_anon_bytes'] / 1e6:,.0f} MB"),
        ("graph file", f"{figures['file_bytes'] / 1e6:,.1f} MB"),
        ("bytes per n-gram, per token", f"{figures['bytes_per_node']}, {figures['bytes_per_token']}"),
        (f"CPU of a dict of dicts / ours, {figures['dict_tokens']:,} words", f"×{figures['dict_cpu_ratio']:.1f}"),
        ("the same, the dict filled by iterators", f"×{figures['fast_dict_cpu_ratio']:.1f}"),
    ]
