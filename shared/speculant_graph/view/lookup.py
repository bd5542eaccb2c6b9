"""Looks up a text in a graph, for the explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import DraftRequestError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc.step_messages import public_name
from speculant_graph.strategies import NGRAM_STRATEGIES, STRATEGIES
from speculant_graph.types import Draft, TokenId
from speculant_graph.version import VERSION
from speculant_graph.view.places import locate
from speculant_graph.view.question import (
    MAX_BUDGET,
    MAX_CHARACTERS,
    MAX_PLACES,
    MAX_SUCCESSORS,
    MAX_TOKENS,
    Question,
    default_budget,
)

CONTROL_PICTURES = {
    **{chr(code): chr(0x2400 + code) for code in range(0x20)},
    "\t": "⇥",
    "\n": "↵",
    " ": "·",
    "\x7f": "␡",
    "\u00a0": "⍽",
    "\u200b": "∅",
    "\u2028": "↵",
    "\u2029": "¶",
}
"""Maps each invisible character to the symbol that the page shows for it."""
_SHOWN_TOKENS = 64
"""Maximum number of tokens of the text that the response lists individually."""
_MOST_BRANCHES = 64
_SEARCH_S = 5.0
"""Time limit of a search in the corpus, in seconds; it is short because other lookups wait meanwhile."""
_DIGITS = 6
"""Number of significant digits of the probabilities in an answer."""


class GraphLookup:
    """Answers the explorer's questions about one graph. Not thread-safe."""

    def __init__(
        self, graph: NgramGraph, draft: DraftConfig, tokenizer: CorpusTokenizer | None, text_problem: str = ""
    ) -> None:
        """Prepare to answer questions about a graph.

        Args:
            graph: the graph.
            draft: default drafting options.
            tokenizer: the graph's tokenizer; with None, answers have token ids without text.
            text_problem: one line that explains why there is no tokenizer; empty if there is a tokenizer.
        """
        self._graph = graph
        self._draft = draft
        self._tokenizer = tokenizer
        self._text_problem = text_problem
        # Use the sources of a request without a session: they contain no text of other clients.
        sources = draft.sources & {"corpus", "session", "neural"} or {"corpus"}
        # Blends use the maximum number of branches; drafts use the configured number.
        config = draft.model_copy(update={"sources": frozenset(sources), "max_branches": _MOST_BRANCHES})
        self._drafter = SessionDrafter(graph, config)

    def answer(self, question: Question) -> dict[str, Any]:
        """Return the answer to a question; docs/explorer.md describes its fields.

        Raises:
            DraftRequestError: the question has text but there is no tokenizer, or it has ids outside the vocabulary.
        """
        whole = self._token_ids(question)
        token_ids = whole[-MAX_TOKENS:]
        strategy = question.strategy or self._draft.strategy
        match = self._graph.match(token_ids[-self._graph.max_order :])
        return {
            "token_ids": token_ids,
            "num_tokens": len(whole),
            "text": None if self._tokenizer is None else self._decode(token_ids),
            "text_problem": self._text_problem,
            "tokens": [self._token(token_id) for token_id in token_ids[-_SHOWN_TOKENS:]],
            "matched_order": 0 if match is None else match.order,
            "num_different": self._graph.counts(1).size if match is None else len(self._graph.successors(match)),
            "orders": [
                self._order(token_ids, order, question.successors) for order in range(1, self._graph.max_order + 1)
            ],
            "anywhere": self._most_frequent(question.successors) if match is None else [],
            "blend": self._blended(token_ids, STRATEGIES[strategy].is_calibrated, question.successors),
            "draft": self._drafted(token_ids, len(whole), question),
            **self._located(token_ids, question.places),
        }

    def _located(self, token_ids: list[TokenId], most: int) -> dict[str, Any]:
        if not most:
            return {}
        if self._tokenizer is None:
            raise DraftRequestError(self._text_problem)
        return locate(self._graph, self._tokenizer, token_ids, most, _SEARCH_S)

    def _token_ids(self, question: Question) -> list[TokenId]:
        if question.text is not None:
            if self._tokenizer is None:
                raise DraftRequestError(self._text_problem)
            try:
                return self._tokenizer.encode_prompt(question.text) if question.text else []
            except (UnicodeEncodeError, TypeError):
                raise DraftRequestError("the text has half a character (an unpaired surrogate); remove it") from None
        size = self._graph.vocabulary_size
        token_ids = question.token_ids or []
        if any(token_id >= size for token_id in token_ids):
            raise DraftRequestError(f"the tokenizer has the ids 0 to {size - 1}; send ids in this range")
        return token_ids

    def _decode(self, token_ids: Sequence[TokenId]) -> str:
        return "" if self._tokenizer is None else self._tokenizer.decode(token_ids)

    def _token(self, token_id: TokenId) -> dict[str, Any]:
        return {"id": token_id, "text": None if self._tokenizer is None else self._decode([token_id])}

    def _counted(self, pairs: Sequence[tuple[TokenId, int]], total: int) -> list[dict[str, Any]]:
        return [
            {**self._token(token_id), "count": count, "probability": _rounded(count / max(1, total))}
            for token_id, count in pairs
        ]

    def _order(self, token_ids: list[TokenId], order: int, most: int) -> dict[str, Any]:
        context = tuple(token_ids[-order:]) if order <= len(token_ids) else ()
        successors = self._graph.successors(context)
        return {
            "order": order,
            "context": [self._token(token_id) for token_id in context],
            "count": successors.total,
            "num_successors": len(successors),
            "successors": self._counted(successors.most_common(most), successors.total),
        }

    def _most_frequent(self, most: int) -> list[dict[str, Any]]:
        pairs = [(token_id, count) for (token_id,), count in self._graph.most_common(most)]
        return self._counted(pairs, int(self._graph.counts(1).sum(dtype=np.uint64)))

    def _blended(self, token_ids: list[TokenId], is_calibrated: bool, most: int) -> dict[str, Any]:
        if is_calibrated:
            options = DraftOptions("tree", max_depth=1, max_branches=_MOST_BRANCHES)
            draft = self._from_contexts(token_ids, len(token_ids), min(most, MAX_SUCCESSORS), 0, options)
            pairs = list(zip(draft.token_ids, draft.path_probabilities, strict=True))
            num_different = None
        else:
            match = self._graph.match(token_ids[-self._graph.max_order :])
            known = self._graph.successors(match or ())
            num_different = len(known)
            pairs = [(token_id, count / known.total) for token_id, count in known.most_common(most)]
        successors = [{**self._token(token_id), "probability": _rounded(share)} for token_id, share in pairs]
        return {
            "name": "calibrated" if is_calibrated else "longest",
            "num_successors": num_different,
            "successors": successors,
        }

    def _drafted(self, token_ids: list[TokenId], position: int, question: Question) -> dict[str, Any]:
        strategy = question.strategy or self._draft.strategy
        budget = question.budget or default_budget(self._draft.k)
        options = DraftOptions(strategy, max_branches=self._draft.max_branches)
        draft = self._from_contexts(token_ids, position, budget, question.seed, options)
        paths: list[list[TokenId]] = [list(token_ids[-self._graph.max_order :])]
        nodes = []
        for index, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
            context = paths[parent]
            node = {**self._token(token_id), "parent": parent, **self._longest_match(context, token_id)}
            node["path_probability"] = _rounded(draft.path_probabilities[index]) if draft.path_probabilities else None
            nodes.append(node)
            paths.append([*context, token_id])
        return {"strategy": strategy, "budget": budget, "ended_early": draft.terminated_early, "nodes": nodes}

    def _longest_match(self, context: list[TokenId], token_id: TokenId) -> dict[str, Any]:
        """Return the count and probability of a token after the longest context that it follows in the graph."""
        for order in range(min(self._graph.max_order, len(context)), 0, -1):
            probability = self._graph.probability(context[-order:], token_id)
            if probability:
                count = self._graph.count([*context[-order:], token_id])
                return {"order": order, "count": count, "probability": _rounded(probability)}
        return {"order": 0, "count": self._graph.count([token_id]), "probability": None}

    def _from_contexts(
        self, token_ids: list[TokenId], position: int, budget: int, seed: int, options: DraftOptions
    ) -> Draft:
        context = np.array(token_ids, np.int64)
        return self._drafter.draft_contexts([context], [budget], [seed], [position], options)[0]


def described(graph: NgramGraph, name: str, generation: int, *, is_default: bool) -> dict[str, Any]:
    """Return the description of a graph for the explorer's page.

    Args:
        graph: the graph.
        name: the name that questions use for the graph.
        generation: number that identifies the load in which the graph was read; see ListGraphs.
        is_default: whether the page shows this graph first.
    """
    metadata = graph.metadata
    return {
        "name": name,
        "is_default": is_default,
        "generation": generation,
        "tokenizer": public_name(metadata.tokenizer.name),
        "vocabulary_size": metadata.tokenizer.vocabulary_size,
        "max_order": graph.max_order,
        "num_tokens": metadata.num_tokens,
        "num_documents": metadata.num_documents,
        "num_contexts": sum(metadata.contexts_per_order),
        "num_transitions": sum(metadata.transitions_per_order),
        "built_at": metadata.built_at,
    }


def listed(graphs: Sequence[dict[str, Any]], draft: DraftConfig) -> dict[str, Any]:
    """Return the data that the explorer's page needs before its first question.

    Args:
        graphs: the available graphs, from :func:`described`.
        draft: default drafting options.
    """
    return {
        "version": VERSION,
        "graphs": graphs,
        "defaults": {"strategy": draft.strategy, "budget": default_budget(draft.k)},
        "strategies": list(NGRAM_STRATEGIES),
        "capabilities": {
            name: {"summary": STRATEGIES[name].summary, "has_proposals": STRATEGIES[name].has_proposals}
            for name in NGRAM_STRATEGIES
        },
        "limits": {
            "characters": MAX_CHARACTERS,
            "tokens": MAX_TOKENS,
            "successors": MAX_SUCCESSORS,
            "budget": MAX_BUDGET,
            "places": MAX_PLACES,
        },
        "glyphs": CONTROL_PICTURES,
    }


def _rounded(probability: float) -> float:
    return float(f"{probability:.{_DIGITS}g}")
