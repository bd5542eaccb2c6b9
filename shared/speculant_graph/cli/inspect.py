"""``speculant inspect``: what a graph holds, and what it would draft after a text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic_settings import CliPositionalArg

from speculant_graph.config import DraftConfig
from speculant_graph.settings import CommandSettings, load_settings


class InspectSettings(CommandSettings):
    """Show what a graph file holds, and what it would draft."""

    path: CliPositionalArg[Path]
    """Graph file."""
    prompt: str | None = None
    """Show the draft after this text."""
    verify: bool = False
    """Check every array against its digest."""
    json_output: bool = False
    """Print one JSON object as the last line."""
    draft: DraftConfig = DraftConfig()
    """How to draft after the prompt."""


def run(arguments: Sequence[str]) -> int:
    """Print the graph's metadata and, with a prompt, a draft."""
    settings = load_settings(InspectSettings, "inspect", arguments)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.draft.generator import DraftGenerator
    from speculant_graph.graph.ngrams import NgramGraph

    graph = NgramGraph.load(settings.path, verify=settings.verify)
    metadata = graph.metadata
    report: dict[str, object] = {
        "path": str(settings.path),
        "file_bytes": settings.path.stat().st_size,
        "tokens": metadata.num_tokens,
        "max_order": metadata.max_order,
        "contexts_per_order": list(metadata.contexts_per_order),
        "transitions_per_order": list(metadata.transitions_per_order),
        "tokenizer": metadata.tokenizer.name,
        "tokenizer_sha256": metadata.tokenizer.sha256,
        "vocabulary_size": metadata.tokenizer.vocabulary_size,
        "built_at": metadata.built_at,
        "corpus_files": len(metadata.corpus_files),
        "verified": settings.verify,
    }
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[bold]{escape(str(settings.path))}[/]  {settings.path.stat().st_size / 1e6:.1f} MB, "
        f"built {metadata.built_at} from {len(metadata.corpus_files):,} files, {metadata.num_tokens:,} tokens"
        + (", every digest right" if settings.verify else "")
    )
    console.print(
        f"tokenizer {escape(metadata.tokenizer.name)} ({metadata.tokenizer.vocabulary_size:,} ids, "
        f"{metadata.tokenizer.sha256[:12]}…)"
    )
    table = Table("order", "contexts", "transitions", "successors per context", box=None)
    for order, (contexts, transitions) in enumerate(
        zip(metadata.contexts_per_order, metadata.transitions_per_order, strict=True), start=1
    ):
        ratio = transitions / contexts if contexts else 0.0
        table.add_row(str(order), f"{contexts:,}", f"{transitions:,}", f"{ratio:.2f}")
    console.print(table)
    if settings.prompt is not None:
        tokenizer = CorpusTokenizer.load(metadata.tokenizer.name)
        draft = DraftGenerator(graph, settings.draft, tokenizer).generate(settings.prompt)
        text = tokenizer.decode(draft.token_ids)
        report |= {"draft_token_ids": list(draft.token_ids), "draft_text": text}
        after, drafted = escape(repr(settings.prompt)), escape(repr(text))
        console.print(f"after [cyan]{after}[/] it drafts {len(draft)} tokens: [green]{drafted}[/]")
    if settings.json_output:
        sys.stdout.write(json.dumps(report) + "\n")
    return 0
