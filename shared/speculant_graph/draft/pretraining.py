"""Calibrates drafting before the first request, on a held-out slice of the corpus.

Most of the corpus is counted into a temporary graph. Held-out pieces are replayed as requests, from which the
calibration tables learn how reliable each kind of context is. The final graph counts the whole corpus, including the
held-out pieces.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from speculant_graph._core import Calibration
from speculant_graph.config import DraftConfig
from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR
from speculant_graph.draft.learning.learned_store import save_calibration
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.files import writing
from speculant_graph.graph.build.builder import describe_tokens
from speculant_graph.graph.build.count import count_tokens, map_tokens
from speculant_graph.graph.build.slices import SMALLEST_CORPUS, divide
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.graph.metadata import GraphMetadata
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, SequenceStep, TokenId

KEPT_VISITS = 5.0
"""Maximum visit count of each row in the pretrained tables. With low counts, real requests, which differ from the
corpus, soon outweigh it. (With unlimited counts, the first code-editing requests, which repeat their prompts, got 2 %
worse drafts than without pretraining.)"""

_CONFIG = DraftConfig(strategy="tree", sources=frozenset(("corpus", "session", "neural")))
_PROMPT_SHARE = 4
_NODES = 8


def pretrain(stream: Path, metadata: GraphMetadata, memory: int, jobs: int, model: UInt32Array | None = None) -> bytes:
    """Learn from a corpus how reliable its contexts are, in about a second for a corpus of any size.

    The arguments ``memory`` and ``jobs`` do not change the result.

    Args:
        stream: file of little-endian 32-bit token ids, with document separators if there are boundaries. Temporary
            files are written to the folder of the stream's file.
        metadata: metadata of the stream's graph; only tokenizer, largest order and number of tokens are used.
        memory: memory limit in bytes.
        jobs: threads.
        model: the graph's neural model as 32-bit words; it was not trained on the held-out pieces.

    Returns:
        Calibration tables for ``load_calibration``, about 50 kilobytes; empty if the corpus is too small.

    Raises:
        GraphError: an id is outside the vocabulary.
        GraphFileError: the folder can't be written.
    """
    token_ids = map_tokens(stream)
    if metadata.num_tokens < SMALLEST_CORPUS:
        return b""
    slices = divide(token_ids.size)
    counted = _joined([token_ids[part] for part in slices.counted])
    if not counted.size:  # happens with more documents than tokens: some tokenizers drop characters
        return b""
    pieces = [document for part in slices.held_out for document in _documents(token_ids[part])]
    calibration = Calibration()
    with tempfile.TemporaryDirectory(dir=stream.parent) as temporary:
        folder = Path(temporary)
        with writing(folder):
            counted.tofile(folder / "tokens")
        description = describe_tokens(
            counted,
            metadata.tokenizer,
            max_order=metadata.max_order,
            num_documents=int(np.count_nonzero(counted == DOCUMENT_SEPARATOR)) + 1,
            document_boundaries=True,
        )
        del counted
        count_tokens(folder / "tokens", folder / "graph", description, folder, memory=memory, jobs=jobs, model=model)
        _replay(SessionDrafter(NgramGraph.load(folder / "graph"), _CONFIG, calibration=calibration), pieces)
    tables = (calibration.weights, calibration.bins)
    calibration.restore(*(table * (KEPT_VISITS / np.maximum(table[:, :1], KEPT_VISITS)) for table in tables))
    return save_calibration(calibration)


def _replay(drafter: SessionDrafter, pieces: list[UInt32Array]) -> None:
    """Replay texts step by step as requests, so that the drafter learns. The first part of each text is its prompt."""
    for piece in pieces:
        tokens = piece.tolist()
        position = len(tokens) // _PROMPT_SHARE
        if not position:
            continue
        drafter.open(0)
        drafter.accept(0, tokens[:position])
        while position < len(tokens):
            (draft,) = drafter.draft([SequenceStep(0, (), _NODES)])
            stop = position + len(_accepted_path(draft, tokens[position : position + _NODES])) + 1
            drafter.accept(0, tokens[position:stop])
            position = stop
        drafter.close(0)


def _joined(parts: list[UInt32Array]) -> UInt32Array:
    """Join parts with document separators. The result has no adjacent separators, and no separator at its ends."""
    separator = np.array([DOCUMENT_SEPARATOR], np.uint32)
    joined = np.concatenate([piece for part in parts for piece in (separator, part)])
    is_separator = joined == DOCUMENT_SEPARATOR
    follows = np.append(is_separator[1:], True)
    kept: UInt32Array = joined[~(is_separator & follows)]
    return kept[1:]


def _documents(piece: UInt32Array) -> list[UInt32Array]:
    """Return the documents in a piece of a stream, without the separators."""
    borders = [-1, *np.flatnonzero(piece == DOCUMENT_SEPARATOR).tolist(), piece.size]
    return [piece[before + 1 : border] for before, border in pairwise(borders)]


def _accepted_path(draft: Draft, token_ids: Sequence[TokenId]) -> list[int]:
    """Return the draft's nodes, numbered from 1, on the path that matches ``token_ids``."""
    path: list[int] = []
    last = 0
    for node, (parent, token_id) in enumerate(zip(draft.parents, draft.token_ids, strict=True), start=1):
        # Children come after their parents, so one pass over the nodes is enough.
        if parent == last and len(path) < len(token_ids) and token_id == token_ids[len(path)]:
            path.append(node)
            last = node
    return path
