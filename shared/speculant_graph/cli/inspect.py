"""``speculant inspect``: what a graph holds, what it would draft after a text, and how much of a text it knows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import checked_prompt
from speculant_graph.config import DraftConfig, GraphConfig
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
    verify: bool = False
    """Check every array against its checksum, and that all of it fits together."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    graph: GraphConfig = GraphConfig()
    """How the text of --coverage is read, special tokens as for the graph; tokenizer: the graph's, if it is no longer
    where the graph was built."""
    draft: DraftConfig = DraftConfig()
    """How to draft after the prompt."""


def run(arguments: Sequence[str]) -> int:
    """Print the graph's description and, where asked for, drafts and coverage."""
    settings = load_settings(InspectSettings, "inspect", arguments)
    prompt = None if settings.prompt is None else checked_prompt(settings.prompt)
    from speculant_graph.cli.inspect_report import coverage_of, describe_graph, explain_prompt
    from speculant_graph.cli.inspect_tables import InspectPrinter
    from speculant_graph.corpus.files import list_corpus_files
    from speculant_graph.graph.store import load_graph, verify_graph
    from speculant_graph.log import log_to_stderr

    log_to_stderr("INFO")
    is_read = prompt is not None or settings.coverage is not None
    graph = verify_graph(settings.path) if settings.verify else load_graph(settings.path, verify=is_read)
    files = None if settings.coverage is None else list_corpus_files(settings.coverage)
    tokenizer, problem = _tokenizer(graph, settings.graph, is_needed=prompt is not None or files is not None)
    report = describe_graph(graph, settings.path, settings.top, tokenizer) | {"verified": settings.verify}
    printer = InspectPrinter()
    printer.show_graph(report, problem)
    if prompt is not None:
        assert tokenizer is not None
        report |= explain_prompt(graph, tokenizer, prompt, settings.draft, settings.top)
        printer.show_prompt(report)
    if files is not None:
        assert tokenizer is not None
        report["coverage"] = {"path": str(settings.coverage)} | coverage_of(graph, tokenizer, files, settings.graph)
        printer.show_coverage(report)
    if settings.json_output:
        sys.stdout.write(json.dumps(report) + "\n")
    return 0


def _tokenizer(graph: NgramGraph, config: GraphConfig, *, is_needed: bool) -> tuple[CorpusTokenizer | None, str]:
    """Return the graph's tokenizer, or None and why there is none; merely to show texts nothing is downloaded."""
    from speculant_graph.corpus.tokenize import CorpusTokenizer, local_tokenizer

    own_name = graph.metadata.tokenizer.name
    name = config.tokenizer_name if "tokenizer_name" in config.model_fields_set else own_name
    if is_needed or name != own_name:
        hf_token = config.hf_token.get_secret_value() if config.hf_token else None
        tokenizer = CorpusTokenizer.load(name, hf_token, graph.metadata.special_tokens)
        tokenizer.require(graph.metadata.tokenizer)
        return tokenizer, ""
    try:
        return local_tokenizer(graph.metadata.tokenizer), ""
    except (ConfigError, TokenizerMismatchError, ModuleNotFoundError) as error:
        return None, str(error)
