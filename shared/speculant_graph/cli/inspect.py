"""``speculant inspect``: what a graph holds, what it would draft after a text, and how much of a text it knows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.config import DraftConfig
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.ngrams import NgramGraph


class InspectSettings(CommandSettings):
    """Show what a graph file holds, what it would draft, and how much of a text it knows."""

    path: CliPositionalArg[Path]
    """Graph file."""
    prompt: str | None = None
    """Show the draft after this text, and what every order would go on with."""
    coverage: Path | None = None
    """Show how much of this text the graph knows: any file that could be a corpus."""
    top: Annotated[int, Field(ge=0, le=1_000)] = 5
    """How many n-grams of each length and successors of each context are shown."""
    tokenizer: str | None = None
    """The graph's tokenizer, if it is no longer where the graph was built: a name on the hub or a folder."""
    verify: bool = False
    """Check every array against its checksum, and that all of it fits together."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    draft: DraftConfig = DraftConfig()
    """How to draft after the prompt."""


def run(arguments: Sequence[str]) -> int:
    """Print the graph's description and, where asked for, drafts and coverage."""
    settings = load_settings(InspectSettings, "inspect", arguments)
    from speculant_graph.cli.inspect_report import coverage_of, describe_graph, explain_prompt
    from speculant_graph.cli.inspect_tables import InspectPrinter
    from speculant_graph.graph.store import load_graph, verify_graph

    graph = verify_graph(settings.path) if settings.verify else load_graph(settings.path)
    needs_text = settings.prompt is not None or settings.coverage is not None
    tokenizer, problem = _tokenizer(graph, settings.tokenizer, is_needed=needs_text)
    report = describe_graph(graph, settings.path, settings.top, tokenizer) | {"verified": settings.verify}
    printer = InspectPrinter()
    printer.show_graph(report, problem)
    if settings.prompt is not None:
        assert tokenizer is not None
        report |= explain_prompt(graph, tokenizer, settings.prompt, settings.draft, settings.top)
        printer.show_prompt(report)
    if settings.coverage is not None:
        assert tokenizer is not None
        report |= coverage_of(graph, tokenizer, settings.coverage)
        printer.show_coverage(report)
    if settings.json_output:
        sys.stdout.write(json.dumps(report) + "\n")
    return 0


def _tokenizer(graph: NgramGraph, name: str | None, *, is_needed: bool) -> tuple[CorpusTokenizer | None, str]:
    """Return the graph's tokenizer, or None and why there is none; merely to show texts nothing is downloaded."""
    from speculant_graph.corpus.tokenize import CorpusTokenizer

    if is_needed or name is not None:
        tokenizer = CorpusTokenizer.load(name or graph.metadata.tokenizer.name)
        tokenizer.require(graph.metadata.tokenizer)
        return tokenizer, ""
    folder = _local_folder(graph.metadata.tokenizer.name)
    if folder is None:
        return None, "the tokenizer is not on this machine; name it by --tokenizer"
    try:
        tokenizer = CorpusTokenizer.load(folder)
        tokenizer.require(graph.metadata.tokenizer)
    except (ConfigError, TokenizerMismatchError, ModuleNotFoundError) as error:
        return None, str(error)
    return tokenizer, ""


def _local_folder(name: str) -> Path | None:
    if Path(name).is_dir():
        return Path(name)
    try:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(name, "tokenizer.json")
    except (ModuleNotFoundError, ValueError):  # not installed; a folder that is gone is no name on the hub
        return None
    return Path(file).parent if isinstance(file, str) else None
