"""Searches a graph's corpus files for the last tokens of a text, for commands and the explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speculant_graph.corpus.search import FileState, find_places
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.file_names import displayed
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import TokenId

STATES: dict[FileState, str] = {
    "missing": "it is missing; a relative name is relative to this folder",
    "changed": "it has changed since the build",
    "unreadable": "it can't be read",
    "not kept": "it came through a pipe",
}
"""Messages that explain why a corpus file was not searched."""


def locate(
    graph: NgramGraph,
    tokenizer: CorpusTokenizer,
    token_ids: Sequence[TokenId],
    most: int,
    max_seconds: float | None = None,
) -> dict[str, Any]:
    """Return where the longest known suffix of a text occurs in the graph's corpus.

    Args:
        graph: the graph.
        tokenizer: the graph's tokenizer.
        token_ids: the text.
        most: maximum number of places, after which the search ends.
        max_seconds: time limit of the search.
    """
    match = graph.match(token_ids[-graph.max_order :])
    context = list(token_ids[-match.order :]) if match is not None and match.order else []
    found = find_places(graph.metadata.corpus_files if context else (), context, tokenizer, most, max_seconds)
    return {
        "places_token_ids": context,
        "places_text": tokenizer.decode(context) if context else "",
        "places_seen": graph.count(context) if context else 0,
        "places": [{**place._asdict(), "file": displayed(place.file)} for place in found.places],
        "places_unsearched": [{"file": displayed(file), "state": state} for file, state in found.unsearched],
        "places_complete": found.is_complete,
    }
