"""What ``speculant bench rpc`` drafts from and for: a graph of Python's own sources, and texts drawn from a graph."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import numpy as np

from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint

_WORDS = re.compile(r"\w+|\n\s*|[^\S\n]+|[^\w\s]")
_MOST_TOKENS = 1_500_000
_TOKENS_AT_A_TIME = 64


def words_of_standard_library(max_tokens: int = _MOST_TOKENS) -> tuple[list[int], Fingerprint]:
    """Return the words of Python's standard library as ids, and what numbers them: real text without a tokenizer.

    Args:
        max_tokens: no further file is read when there are so many.
    """
    ids: dict[str, int] = {}
    token_ids: list[int] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        token_ids.extend(ids.setdefault(word, len(ids)) for word in _WORDS.findall(text))
        if len(token_ids) >= max_tokens:
            break
    return token_ids, Fingerprint("words of Python's sources", "57" * 32, len(ids))


def drawn_texts(graph: NgramGraph, num_texts: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Return texts of a graph's own distributions; where one can't go on, it goes on anywhere."""
    generator = DraftGenerator(graph)
    random = np.random.default_rng(seed)
    texts = []
    for index in range(num_texts):
        text: list[int] = []
        while len(text) < num_tokens:
            drawn = generator.draft(
                text[-graph.max_order :], _TOKENS_AT_A_TIME, "sampling", seed=index, position=len(text)
            )
            text.extend(drawn.token_ids or [int(random.integers(graph.vocabulary_size))])
        texts.append(text[:num_tokens])
    return texts
