"""``speculant view``: saves an HTML page that shows which tokens follow a text in a graph."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.errors import ConfigError
from speculant_graph.file_names import displayed, json_text
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_graph.strategies import NgramStrategyName
from speculant_graph.terminal import checked_prompt, counted, printable
from speculant_graph.view.question import MAX_BUDGET, MAX_CHARACTERS, MAX_SUCCESSORS, Question


class ViewSettings(ReportingSettings):
    """Save the explorer's page about the tokens that follow a text, as one HTML file for any browser."""

    path: CliPositionalArg[Path]
    """Graph file."""
    prompt: str = ""
    """Text whose next tokens the page shows; by default, the page shows the graph's most frequent tokens."""
    output: Path = Path("graph.html")
    """Output file."""
    strategy: NgramStrategyName = "tree"
    """Drafting strategy of the draft that the page shows."""
    nodes: Annotated[int, Field(ge=1, le=MAX_BUDGET)] = 32
    """Maximum number of nodes of the draft."""
    successors: Annotated[int, Field(ge=1, le=MAX_SUCCESSORS)] = 20
    """Maximum number of successors shown per context."""
    tokenizer: str | None = None
    """New location of the graph's tokenizer, if it has moved since the build: a name on the Hugging Face hub, or a
    folder."""


def run(arguments: Sequence[str]) -> int:
    """Write the page; print its path."""
    settings = load_settings(ViewSettings, "view", arguments)
    if settings.output.suffix.lower() != ".html":
        raise ConfigError(f"{settings.output} does not end in .html; choose a name that does")
    prompt = checked_prompt(settings.prompt)
    from speculant_graph.config import DraftConfig
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.files import replace_bytes
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr
    from speculant_graph.view.lookup import GraphLookup, described, listed
    from speculant_graph.view.snapshot import render_snapshot

    log_to_stderr("INFO")
    graph = NgramGraph.load(settings.path, verify=True)
    fingerprint = graph.metadata.tokenizer
    tokenizer = CorpusTokenizer.load(settings.tokenizer or fingerprint.name, special_tokens="parse")
    tokenizer.require(fingerprint)
    name, draft = displayed(settings.path.stem), DraftConfig(strategy=settings.strategy, k=settings.nodes)
    answer = GraphLookup(graph, draft, tokenizer).answer(
        Question(text=prompt[-MAX_CHARACTERS:], successors=settings.successors)
    )
    graphs = [described(graph, name, 1, is_default=True)]
    replace_bytes(settings.output, render_snapshot(listed(graphs, draft), answer, name).encode())
    order, num_tokens, num_nodes = answer["matched_order"], answer["num_tokens"], len(answer["draft"]["nodes"])
    known = f"after the last {order} of {counted(num_tokens, 'prompt token')}"
    unknown = "the graph's most frequent tokens; " + ("no suffix of the prompt is in it" if prompt else "no prompt")
    summary = f"{known if order else unknown}, a draft of {counted(num_nodes, 'node')}"
    sys.stdout.write(f"{printable(str(settings.output))}: {summary}\n")
    if settings.json_output:
        figures = {
            "output": str(settings.output),
            "nodes": num_nodes,
            "order": order,
            "prompt_tokens": num_tokens,
            "file_bytes": settings.output.stat().st_size,
        }
        sys.stdout.write(json_text(figures) + "\n")
    return 0
