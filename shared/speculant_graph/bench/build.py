"""``speculant bench build``: a whole build in a process of its own, and counting against plain Python."""

from __future__ import annotations

import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliVariadicArg

from speculant_graph.config import GraphConfig
from speculant_graph.errors import ConfigError, GraphError
from speculant_graph.settings import CommandSettings, TypedPath, load_settings

if TYPE_CHECKING:
    from speculant_graph.graph.layout import UInt32Array
    from speculant_graph.types import Fingerprint

_ROUNDS = 2


class BenchBuildSettings(CommandSettings):
    """Build a graph in a process of its own, then count the corpus's first tokens against a dict of dicts."""

    corpus: CliVariadicArg[list[TypedPath]]
    """Files, folders and patterns, as for 'speculant build'."""
    output: Path | None = None
    """Keep the graph here. Default: it is thrown away."""
    dict_tokens: Annotated[int, Field(ge=100)] = 1_000_000
    """Tokens that the comparison with plain Python counts, at least 100; a million takes 20 s and a gigabyte."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """How to build."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    settings = load_settings(BenchBuildSettings, "bench build", arguments)
    from speculant_graph.bench.report import print_report
    from speculant_graph.bench.tokens import first_tokens
    from speculant_graph.corpus.files import STANDARD_INPUT, list_corpus_files
    from speculant_graph.corpus.tokenize import CorpusTokenizer

    files = list_corpus_files(settings.corpus)
    if STANDARD_INPUT in files:
        raise ConfigError("a bench reads its corpus more than once; name files instead of standard input")
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        built = build_in_child(files, settings.output or Path(folder) / "graph.pkl", settings.graph)
    config = settings.graph
    tokenizer = CorpusTokenizer.load(
        config.tokenizer_name,
        config.hf_token.get_secret_value() if config.hf_token else None,
        config.special_tokens,
    )
    token_ids = first_tokens(tokenizer, files, config, settings.dict_tokens)
    figures = _figures(built) | compare_counting(token_ids, tokenizer.fingerprint, config.max_order)
    print_report("build", _rows(figures), figures, arguments, as_json=settings.json_output)
    return 0


def build_in_child(files: Sequence[Path], output: Path, config: GraphConfig) -> dict[str, Any]:
    """Run ``speculant build`` in a new process and return the object that it prints.

    Its bars go to this process's standard error. The child ends with this call, whatever ends it.

    Raises:
        GraphError: the build failed; it has logged why.
    """
    values = config.model_dump() | {"hf_token": config.hf_token and config.hf_token.get_secret_value()}
    # By the environment: it is the one way that takes every setting, and no secret is seen in a list of processes.
    environment = {
        f"SPECULANT_GRAPH__{name.upper()}": str(value) for name, value in values.items() if value is not None
    }
    command = [sys.executable, "-m", "speculant_graph.cli.main", "build", "--json", "--output", str(output), "--"]
    child = subprocess.Popen(
        [*command, *map(str, files)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C must reach it once: a second one would interrupt its cleaning up
    )
    try:
        printed, _ = child.communicate()
    except BaseException:
        child.send_signal(signal.SIGINT)
        child.communicate()
        raise
    if child.returncode != 0:
        raise GraphError(f"the build ended with status {child.returncode}; see its message above")
    built: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return built


def compare_counting(token_ids: UInt32Array, fingerprint: Fingerprint, max_order: int) -> dict[str, object]:
    """Count the same tokens by this library and by plain Python, in interleaved trials, and compare CPU seconds.

    Args:
        token_ids: shape ``[num_tokens]``.
        fingerprint: their tokenizer.
        max_order: longest context.
    """
    from speculant_graph.bench.dictionary import count_by_hand, count_by_iterators
    from speculant_graph.graph.build.builder import build_from_token_ids

    listed = token_ids.tolist()
    trials: dict[str, Callable[[], object]] = {
        "our": lambda: build_from_token_ids(token_ids, fingerprint, max_order=max_order),
        "dict": lambda: count_by_hand(listed, max_order),
        "fast_dict": lambda: count_by_iterators(listed, max_order),
    }
    seconds: dict[str, list[float]] = {name: [] for name in trials}
    for _ in range(_ROUNDS):
        for name, count in trials.items():
            seconds[name].append(_cpu_s(count))
    seconds["our"].append(_cpu_s(trials["our"]))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "dict_tokens": len(listed),
        "our_cpu_s": round(median["our"], 3),
        "dict_cpu_s": round(median["dict"], 3),
        "dict_cpu_ratio": round(median["dict"] / median["our"], 2),
        "fast_dict_cpu_s": round(median["fast_dict"], 3),
        "fast_dict_cpu_ratio": round(median["fast_dict"] / median["our"], 2),
    }


def _cpu_s(function: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    result = function()
    end = time.process_time()
    del result  # taking it apart is not part of counting
    return end - start


def _figures(built: dict[str, Any]) -> dict[str, object]:
    copied = ("tokens", "documents", "files", "text_bytes", "max_order", "tokenize_s", "count_s", "save_s", "total_s",
              "count_cpu_s", "peak_anon_bytes", "file_bytes", "nodes")  # fmt: skip
    return {name: built[name] for name in copied} | {
        "tokens_per_cpu_s": round(built["tokens"] / built["count_cpu_s"]),
        "bytes_per_node": round(built["file_bytes"] / built["nodes"], 2),
        "bytes_per_token": round(built["file_bytes"] / built["tokens"], 2),
    }


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("corpus", f"{figures['text_bytes'] / 1e6:,.1f} MB, {figures['tokens']:,} tokens"),
        ("tokenising", f"{figures['tokenize_s']:.2f} s"),
        ("counting", f"{figures['count_s']:.2f} s"),
        ("checksums, disk", f"{figures['save_s']:.2f} s"),
        ("all", f"{figures['total_s']:.2f} s"),
        ("counting, tokens per CPU second", f"{figures['tokens_per_cpu_s']:,}"),
        ("peak of anonymous memory", f"{figures['peak_anon_bytes'] / 1e6:,.0f} MB"),
        ("graph file", f"{figures['file_bytes'] / 1e6:,.1f} MB"),
        ("bytes per n-gram, per token", f"{figures['bytes_per_node']}, {figures['bytes_per_token']}"),
        (f"CPU of a dict of dicts / ours, {figures['dict_tokens']:,} tokens", f"×{figures['dict_cpu_ratio']:.1f}"),
        ("the same, the dict filled by iterators", f"×{figures['fast_dict_cpu_ratio']:.1f}"),
    ]  # fmt: skip
