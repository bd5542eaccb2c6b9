"""A neighbourhood as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.view.glyphs import GLYPHS
from speculant_graph.view.neighbourhood import Neighbourhood

_SCRIPTS = ("text.js", "tree.js", "moves.js")
"""Parts of the page's script, in their order: later ones use the names of earlier ones."""


def render_page(neighbourhood: Neighbourhood, metadata: GraphMetadata, name: str) -> str:
    """Return the page: an interactive tree, a table of the orders, and what the graph is.

    It loads nothing, and its security policy forbids it to; text of the graph is data in it, never markup.

    Args:
        neighbourhood: what to show.
        metadata: of the graph.
        name: of the graph, for the heading.
    """
    # In a block, so that no name of the script is one of the browser's.
    style, script = _part("page.css"), '"use strict";\n{\n' + "\n".join(map(_part, _SCRIPTS)) + "}\n"
    content = {
        "neighbourhood": asdict(neighbourhood),
        "graph": {
            "name": name,
            "tokenizer": _shared_name(metadata.tokenizer.name),
            "vocabulary_size": metadata.tokenizer.vocabulary_size,
            "max_order": metadata.max_order,
            "num_tokens": metadata.num_tokens,
            "num_documents": metadata.num_documents,
            "num_contexts": sum(metadata.contexts_per_order),
            "num_transitions": sum(metadata.transitions_per_order),
            "built_at": metadata.built_at,
        },
        "glyphs": GLYPHS,
    }
    parts = {
        "title": html.escape(f"{name} - speculant view"),
        "style": style,
        "style_digest": _digest(style),
        "script": script,
        "script_digest": _digest(script),
        "data": _embedded(content),
    }
    # In one pass, so that nothing that is filled in is taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _part("page.html"))


def _shared_name(name: str) -> str:
    """Return a tokenizer's name on the hub as it is, and of a folder its last part: others may see the page."""
    is_folder = name.startswith("/") or name.count("/") > 1
    return Path(name).name if is_folder else name


def _part(name: str) -> str:
    return files("speculant_graph.view").joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(content: object) -> str:
    """Return JSON that can stand in a script element: no character of it can end the element or begin a comment."""
    encoded = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
