"""What ``speculant inspect`` shows of a graph, as plain values for tables and JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculant_graph.config import DraftConfig, GraphConfig
from speculant_graph.corpus.stream import write_token_stream
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.graph.build.count import map_tokens
from speculant_graph.graph.coverage import measure_coverage
from speculant_graph.graph.ngrams import NgramGraph


def describe_graph(graph: NgramGraph, path: Path, num_top: int, tokenizer: CorpusTokenizer | None) -> dict[str, Any]:
    """Return sizes, origin and frequent n-grams of a graph; texts are None without a tokenizer."""
    metadata = graph.metadata
    file_bytes, nodes = path.stat().st_size, sum(graph.trie.nodes_per_level)
    return {
        "path": str(path),
        "file_bytes": file_bytes,
        "tokens": metadata.num_tokens,
        "documents": metadata.num_documents,
        "max_order": metadata.max_order,
        "nodes": nodes,
        "nodes_per_level": list(metadata.nodes_per_level),
        "bytes_per_node": round(file_bytes / max(1, nodes), 2),
        "bytes_per_token": round(file_bytes / metadata.num_tokens, 2),
        "contexts_per_order": list(metadata.contexts_per_order),
        "transitions_per_order": list(metadata.transitions_per_order),
        "tokenizer": metadata.tokenizer.name,
        "tokenizer_revision": metadata.tokenizer_revision,
        "tokenizer_sha256": metadata.tokenizer.sha256,
        "vocabulary_size": metadata.tokenizer.vocabulary_size,
        "document_boundaries": metadata.document_boundaries,
        "special_tokens": metadata.special_tokens,
        "min_count": metadata.min_count,
        "built_at": metadata.built_at,
        "build_seconds": metadata.build_seconds,
        "library_version": metadata.library_version,
        "calibration_bytes": len(metadata.calibration),
        "corpus_files": len(metadata.corpus_files),
        "corpus_bytes": sum(file.size_bytes for file in metadata.corpus_files),
        "top_ngrams": [
            [
                {"token_ids": list(ngram), "text": _text(tokenizer, ngram), "count": count}
                for ngram, count in graph.most_common(num_top, length)
            ]
            for length in range(1, graph.max_order + 2)
        ],
    }


def explain_prompt(
    graph: NgramGraph, tokenizer: CorpusTokenizer, prompt: str, config: DraftConfig, num_top: int
) -> dict[str, Any]:
    """Return the draft after a text and, for every order, what is known of the text's end."""
    context = tokenizer.encode_prompt(prompt)
    draft = DraftGenerator(graph, config, tokenizer).generate(context)
    return {
        "prompt": prompt,
        "prompt_token_ids": context[-graph.max_order :],
        "draft_token_ids": list(draft.token_ids),
        "draft_text": tokenizer.decode(draft.token_ids),
        "orders": [
            _explain_order(graph, tokenizer, context, order, num_top) for order in range(graph.max_order, 0, -1)
        ],
    }


def _explain_order(
    graph: NgramGraph, tokenizer: CorpusTokenizer, context: Sequence[int], order: int, num_top: int
) -> dict[str, Any]:
    match = graph.match_order(context, order)
    # An order longer than the prompt has no context at all.
    shown = context[-order:] if order <= len(context) else []
    explained = {"order": order, "context_token_ids": list(shown), "context": tokenizer.decode(shown)}
    if match is None:
        return explained | {"count": 0, "num_successors": 0, "successors": []}
    successors = graph.successors(match)
    total = successors.total
    return explained | {
        "count": total,
        "num_successors": len(successors),
        "successors": [
            {
                "token_id": token_id,
                "text": tokenizer.decode([token_id]),
                "count": count,
                "probability": round(count / max(1, total), 6),
            }
            for token_id, count in successors.most_common(num_top)
        ],
    }


def coverage_of(
    graph: NgramGraph, tokenizer: CorpusTokenizer, files: Sequence[Path], config: GraphConfig
) -> dict[str, Any]:
    """Return how much of a text the graph knows; document boundaries are counted as the graph's were.

    Args:
        graph: the graph.
        tokenizer: its tokenizer; special tokens are what they were for the graph.
        files: the text.
        config: how it is read.

    Raises:
        CorpusError: the text can't be read.
    """
    config = config.model_copy(update={"document_boundaries": graph.metadata.document_boundaries})
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        stream = write_token_stream(tokenizer, files, Path(folder) / "tokens", config)
        coverage = measure_coverage(graph, map_tokens(stream.path))
    return {
        "tokens": stream.num_tokens,
        "positions": coverage.num_positions,
        "known": _share(coverage.num_known, coverage.num_positions),
        "right": _share(coverage.num_right, coverage.num_positions),
        "orders": [
            {
                "order": order.order,
                "positions": order.num_positions,
                "known": _share(order.num_known, order.num_positions),
                "right_of_known": _share(order.num_right, order.num_known),
                "longest": _share(order.num_longest, coverage.num_positions),
                "right_of_longest": _share(order.num_longest_right, order.num_longest),
            }
            for order in coverage.orders
        ],
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _text(tokenizer: CorpusTokenizer | None, token_ids: Sequence[int]) -> str | None:
    return None if tokenizer is None else tokenizer.decode(token_ids)
