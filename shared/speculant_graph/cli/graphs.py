"""Commands that write files of graphs: ``speculant build``, ``update``, ``merge``, ``prune`` and ``export``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.config import GraphConfig
from speculant_graph.errors import ConfigError
from speculant_graph.file_names import json_text
from speculant_graph.log import log_to_stderr
from speculant_graph.machine import num_cores
from speculant_graph.settings import ReportingSettings, TypedPath, load_settings
from speculant_graph.terminal import PHASE_LABELS, counted, left_out_of, printable

if TYPE_CHECKING:
    from rich.progress import TaskID

    from speculant_graph.graph.build.build_report import BuildReport
    from speculant_graph.graph.build.builder import BuildProgress, Workers
    from speculant_graph.graph.ngrams import NgramGraph


class BuildSettings(ReportingSettings):
    """Count the n-grams of a corpus, and write them to a graph file."""

    corpus: CliPositionalArg[list[TypedPath]]
    """Files, folders, patterns such as 'docs/**/*.md', or '-' for standard input. Files can contain text, JSON Lines,
    JSON or PDF, and can be gzipped; folders are searched for such files. Remote addresses such as s3://bucket/text are
    accepted, too."""
    output: Path = Path("graph.pkl")
    """Output file. An existing output file stays intact until the new file is complete."""
    ray: str = ""
    """Address of a Ray cluster that tokenises and counts the corpus, such as 'auto' or 'head:6379'. 'local' starts a
    cluster on this machine."""
    graph: GraphConfig = GraphConfig()
    """Build settings."""


def build(arguments: Sequence[str]) -> int:
    """Build a graph file; print a summary."""
    settings = load_settings(BuildSettings, "build", arguments)
    from speculant_graph.graph.build.builder import GraphBuilder

    builder = GraphBuilder(**settings.graph.model_dump())
    log_to_stderr("INFO")
    with _workers(settings.ray, settings.corpus) as workers, show_progress() as progress:
        graph = builder.build(settings.corpus, settings.output, progress=progress, workers=workers)
    _print_graph(settings.output, graph, settings.json_output, builder.report)
    return 0


@contextmanager
def _workers(ray: str, corpus: Sequence[Path]) -> Iterator[Workers]:
    """Yield the functions that tokenise and count the corpus, in this process or on a Ray cluster."""
    if ray:
        from speculant_graph.corpus.file_patterns import list_corpus_files
        from speculant_graph.graph.build.on_ray import workers_on_ray

        list_corpus_files(corpus)  # a missing file is reported before a cluster starts
        with workers_on_ray(ray) as workers:
            yield workers
    else:
        from speculant_graph.graph.build.builder import Workers

        yield Workers()


class UpdateSettings(ReportingSettings):
    """Add text to a graph; the result equals a graph built from the old and the new text together."""

    path: CliPositionalArg[Path]
    """Graph file."""
    corpus: CliPositionalArg[list[TypedPath]]
    """New text: files, folders, patterns, or '-' for standard input. The new text counts as following the existing
    text."""
    output: Path | None = None
    """Output file; by default, the new graph replaces the old graph file once the new graph is complete."""
    graph: GraphConfig = GraphConfig()
    """Build settings. The tokenizer, orders, document boundaries and special tokens are taken from the existing
    graph."""


def update(arguments: Sequence[str]) -> int:
    """Update a graph file; print a summary."""
    settings = load_settings(UpdateSettings, "update", arguments)
    from speculant_graph.graph.build.combine import update_graph
    from speculant_graph.graph.ngrams import NgramGraph

    log_to_stderr("INFO")
    num_tokens = NgramGraph.load(settings.path).metadata.num_tokens
    output = settings.output or settings.path
    with show_progress() as progress:
        graph = update_graph(settings.path, settings.corpus, output, settings.graph, progress=progress)
    _print_graph(output, graph, settings.json_output, added_tokens=graph.metadata.num_tokens - num_tokens)
    return 0


class MergeSettings(ReportingSettings):
    """Merge two graphs; the result equals a graph built from the first corpus followed by the second."""

    first: CliPositionalArg[Path]
    """Graph file."""
    second: CliPositionalArg[Path]
    """Second graph file, which must have the same tokenizer, orders, document boundaries and special tokens as the
    first. The second graph's text counts as following the first graph's text."""
    output: Path
    """Output file; it may be one of the two input files."""


def merge(arguments: Sequence[str]) -> int:
    """Merge two graph files; print a summary of the result."""
    settings = load_settings(MergeSettings, "merge", arguments)
    from speculant_graph.graph.build.combine import merge_graphs
    from speculant_graph.graph.ngrams import NgramGraph

    log_to_stderr("INFO")
    first, second = (NgramGraph.load(path, verify=True) for path in (settings.first, settings.second))
    with show_progress() as progress:
        graph = merge_graphs(first, second, settings.output, jobs=num_cores(), progress=progress)
    _print_graph(settings.output, graph, settings.json_output)
    return 0


class PruneSettings(ReportingSettings):
    """Drop rare n-grams. Counts of the remaining n-grams stay exact, but a pruned graph can't be updated or merged."""

    path: CliPositionalArg[Path]
    """Graph file."""
    output: Path
    """Output file; it may be the input file."""
    min_count: int = Field(2, ge=2)
    """Drop n-grams that occur fewer times than this number; the graph file records the number."""


def prune(arguments: Sequence[str]) -> int:
    """Prune a graph file; print a summary of the result."""
    settings = load_settings(PruneSettings, "prune", arguments)
    from speculant_graph.graph.build.combine import prune_graph
    from speculant_graph.graph.ngrams import NgramGraph

    log_to_stderr("INFO")
    old = NgramGraph.load(settings.path, verify=True)
    with show_progress() as progress:
        graph = prune_graph(old, settings.min_count, settings.output, jobs=num_cores(), progress=progress)
    removed = sum(old.trie.nodes_per_level) - sum(graph.trie.nodes_per_level)
    _print_graph(settings.output, graph, settings.json_output, min_count=settings.min_count, removed_nodes=removed)
    return 0


class ExportSettings(ReportingSettings):
    """Write a graph as a lookup cache file for llama.cpp.

    The command 'llama-server --spec-type ngram-cache --lookup-cache-dynamic FILE' drafts from the file.
    """

    path: CliPositionalArg[Path]
    """Graph file."""
    output: Path = Path("lookup.bin")
    """Output file."""
    min_count: int = Field(1, ge=1)
    """Leave out contexts that occur fewer times than this number, which makes the file smaller."""
    min_share: float = Field(0.6, ge=0.0, le=1.0)
    """Leave out contexts after which the most frequent next token has a share below this number."""


def export(arguments: Sequence[str]) -> int:
    """Export a graph file; print its path and size."""
    settings = load_settings(ExportSettings, "export", arguments)
    from speculant_graph.engines.llama_cpp.lookup_table import export_llama_lookup
    from speculant_graph.graph.ngrams import NgramGraph

    output = settings.output
    if output.exists() and output.samefile(settings.path):
        raise ConfigError(f"{output} is the graph itself; name another --output")
    graph = NgramGraph.load(settings.path, verify=True)
    contexts = export_llama_lookup(graph, output, min_count=settings.min_count, min_share=settings.min_share)
    file_bytes = output.stat().st_size
    sys.stdout.write(f"{printable(str(output))}: {counted(contexts, 'context')}, {file_bytes / 1e6:.1f} MB\n")
    if settings.json_output:
        report = {"output": str(output), "contexts": contexts, "file_bytes": file_bytes}
        sys.stdout.write(json_text(report) + "\n")
    return 0


@contextmanager
def show_progress() -> Iterator[Callable[[BuildProgress], None]]:
    """Yield a callback that shows a build's progress: a bar for each phase on a terminal, otherwise nothing."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    tasks: dict[str, TaskID] = {}
    with Progress(console=console) as bars:

        def show(progress: BuildProgress) -> None:
            if progress.phase not in tasks:
                for task in tasks.values():  # the size of standard input was unknown
                    bars.update(task, total=bars.tasks[task].completed)
                tasks[progress.phase] = bars.add_task("", total=None)
            label = f"{PHASE_LABELS[progress.phase]:<10} {progress.num_tokens / 1e6:>7.1f}M tokens"
            total = progress.total or None
            bars.update(tasks[progress.phase], description=label, completed=progress.done, total=total)

        yield show


def _print_graph(
    output: Path, graph: NgramGraph, json_output: bool, report: BuildReport | None = None, **facts: int
) -> None:
    """Print a readable line about a graph file and, if requested, a JSON object; both contain ``facts``."""
    metadata = graph.metadata
    left_out = left_out_of(metadata)
    counts = [left_out] if left_out else []
    counts += [f"{name.replace('_', ' ')} {value:,}" for name, value in facts.items()]
    duration = [f"{report.total_s:.1f} s"] if report else []
    sys.stdout.write(", ".join([summary_of(output, graph), *counts, *duration]) + "\n")
    if json_output:
        summary = {
            "output": str(output),
            **metadata.summary(output.stat().st_size),
            **(dataclasses.asdict(report) if report else {}),
            **facts,
        }
        sys.stdout.write(json_text(summary) + "\n")


def summary_of(output: Path, graph: NgramGraph) -> str:
    """Return a readable summary of a graph file. The summary has no final full stop, so that text can be appended."""
    metadata = graph.metadata
    return (
        f"{printable(str(output))}: {counted(metadata.num_tokens, 'token')} of "
        f"{counted(len(metadata.corpus_files), 'file')}, orders 1-{metadata.max_order}, "
        f"{counted(sum(metadata.nodes_per_level), 'n-gram')}, {output.stat().st_size / 1e6:.1f} MB"
    )
