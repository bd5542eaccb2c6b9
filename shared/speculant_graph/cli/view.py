"""``speculant view``: what a graph knows after a text, as a page or a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import checked_prompt, printable
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings
from speculant_graph.view.wording import counted

_ENDINGS: dict[str, Literal["html", "png", "svg"]] = {".html": "html", ".png": "png", ".svg": "svg"}
_MAX_NODES_OF_PAGE, _MAX_NODES_OF_PICTURE = 400, 60


class ViewSettings(CommandSettings):
    """Draw what a graph knows after a text: an interactive page (.html) or a picture (.png, .svg)."""

    path: CliPositionalArg[Path]
    """Graph file."""
    prompt: str = ""
    """Show what may follow this text; without it the most frequent tokens of the graph."""
    output: Path = Path("graph.html")
    """Where it goes; the ending says what it is: .html, .png or .svg."""
    depth: Annotated[int, Field(ge=1, le=32)] = 3
    """Most tokens in a row."""
    branches: Annotated[int, Field(ge=1, le=64)] = 6
    """Most successors shown of one context."""
    max_nodes: Annotated[int, Field(ge=1, le=2_000)] | None = None
    """Most tokens shown, the likeliest paths first; 400 on a page and 60 in a picture if it is not set."""
    tokenizer: str | None = None
    """Tokenizer, if it is not where it was when the graph was built: a name on the hub or a folder."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Write the page or picture; print where it is."""
    settings = load_settings(ViewSettings, "view", arguments)
    kind = _ENDINGS.get(settings.output.suffix.lower())
    if kind is None:
        raise ConfigError(f"{settings.output} ends in none of {', '.join(_ENDINGS)}; choose one of these")
    prompt = checked_prompt(settings.prompt)
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.export import replacing
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr
    from speculant_graph.view.neighbourhood import explore

    log_to_stderr("INFO")
    graph = NgramGraph.load(settings.path, verify=True)
    tokenizer = CorpusTokenizer.load(settings.tokenizer or graph.metadata.tokenizer.name, special_tokens="parse")
    tokenizer.require(graph.metadata.tokenizer)
    shown = explore(
        graph,
        tokenizer.encode_prompt(prompt) if prompt else [],
        tokenizer.decode,
        depth=settings.depth,
        branches=settings.branches,
        max_steps=settings.max_nodes or (_MAX_NODES_OF_PAGE if kind == "html" else _MAX_NODES_OF_PICTURE),
    )
    with replacing(settings.output) as temporary:
        if kind == "html":
            from speculant_graph.view.page import render_page

            temporary.write_text(render_page(shown, graph.metadata, settings.path.name), "utf-8")
        else:
            from speculant_graph.view.picture import draw_picture

            draw_picture(shown, settings.path.name, temporary, kind)
    order = len(shown.context)
    summary = {
        "output": str(settings.output),
        "nodes": shown.num_steps,
        "order": order,
        "prompt_tokens": shown.num_prompt_tokens,
        "file_bytes": settings.output.stat().st_size,
    }
    known = f"after the last {order} of {counted(shown.num_prompt_tokens, 'prompt token')}"
    unknown = "the graph's most frequent tokens; " + ("no end of the prompt is in it" if prompt else "no prompt")
    nodes = counted(shown.num_steps, "node")
    sys.stdout.write(f"{printable(str(settings.output))}: {nodes}, {known if order else unknown}\n")
    if settings.json_output:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0
