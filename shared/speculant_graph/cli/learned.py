"""``speculant inspect --learned``: shows the learned text of a tenant, and exports it as one graph."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.config import GraphConfig

if TYPE_CHECKING:
    from speculant_graph.draft.learning.layers import Layer
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.types import Fingerprint


def report_learned(
    folder: Path, tenant: str, output: Path | None, config: GraphConfig
) -> tuple[dict[str, Any], NgramGraph | None]:
    """Return a description of a tenant's learned text, in the form that the command prints as JSON.

    Args:
        folder: the folder with the learned text of one graph.
        tenant: the tenant.
        output: file for a graph of all the text; None writes no file.
        config: settings that name the tokenizer; needed only if no graph file names it.

    Returns:
        The description of the learned text, and the exported graph, if any.

    Raises:
        ConfigError: the folder has no text of the tenant.
        GraphError: a graph file can't be read or written.
    """
    from speculant_graph.draft.learning.reading import export_learned, read_learned

    learned = read_learned(folder, tenant)
    files = [_described(layer) for layer in learned.layers]
    report: dict[str, Any] = {
        "learned": str(folder),
        "tenant": tenant,
        "tokens": learned.num_young_tokens + sum(layer.num_tokens for layer in learned.layers),
        "file_bytes": learned.database_bytes + sum(layer.num_bytes for layer in learned.layers),
        "young": {
            "texts": len(learned.texts),
            "tokens": learned.num_young_tokens,
            "file_bytes": learned.database_bytes,
            "oldest": _time(learned.texts[0][0]) if learned.texts else None,
            "newest": _time(learned.texts[-1][0]) if learned.texts else None,
        },
        "graphs": files,
        "damaged": [str(path) for path in learned.damaged],
        "export": None if output is None else str(output),
    }
    graph = None if output is None else export_learned(learned, output, _named_tokenizer(config))
    return report, graph


def rows_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the printed table: text that is in no graph yet, then graph files, newest first."""
    young = {"what": "young text", **report["young"]}
    files = [{"what": "graph file", **file} for file in reversed(report["graphs"])]
    for row in (young, *files):
        row.pop("path", None)
        row["MB"] = round(row.pop("file_bytes") / 1e6, 2)
        for end in ("oldest", "newest"):  # precise to the minute, at the end of the row
            row[end] = (row.pop(end) or "–").replace("T", " ")[:16]
    return [young, *files]


def _described(layer: Layer) -> dict[str, Any]:
    return {
        "path": str(layer.path),
        "texts": layer.num_documents,
        "tokens": layer.num_tokens,
        "ngrams": layer.num_ngrams,
        "file_bytes": layer.num_bytes,
        "oldest": _time(layer.first),
        "newest": _time(layer.last),
    }


def _time(milliseconds: int) -> str | None:
    """Return the time when a text was learned, as ISO 8601 in UTC; None if the time was not recorded or is damaged."""
    try:
        moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    except (OSError, OverflowError, ValueError):
        return None
    return moment.isoformat(timespec="seconds") if moment.year > 1970 else None


def _named_tokenizer(config: GraphConfig) -> Fingerprint | None:
    if "tokenizer_name" not in config.model_fields_set:
        return None
    from speculant_graph.corpus.tokenize import CorpusTokenizer

    hf_token = config.hf_token.get_secret_value() if config.hf_token else None
    return CorpusTokenizer.load(config.tokenizer_name, hf_token).fingerprint
