"""What a graph knows after a text, as the explorer shows it. Runs in the explorer's own process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speculant_drafter.explorer.frames import identity_of
from speculant_drafter.explorer.question import MAX_SUCCESSORS, MAX_TOKENS, BlendName, Question, default_budget
from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.draft.options import DraftOptions
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.draft.strategies import CALIBRATED
from speculant_graph.errors import ConfigError, DrafterUnavailableError, DraftRequestError, GraphError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, Fingerprint, MixingName, TokenId
from speculant_graph.view.neighbourhood import Neighbourhood, explore

_SHOWN_TOKENS = 64
"""Most tokens of the text that are sent back one by one."""
_MOST_BRANCHES = 64
_DIGITS = 6
"""Significant digits of probabilities."""


class OpenGraph:
    """One generation of a served graph, with what is needed to ask it."""

    def __init__(
        self, graph: NgramGraph, draft: DraftConfig, tokenizer: CorpusTokenizer | None, text_problem: str
    ) -> None:
        """Take a graph.

        Args:
            graph: the graph.
            draft: how the sidecar drafts.
            tokenizer: the one of the graph; None shows ids only.
            text_problem: why there is none, one line; empty if there is.
        """
        self._graph = graph
        self._draft = draft
        self._tokenizer = tokenizer
        self._text_problem = text_problem
        # What a request without a session drafts from: nothing that anybody else wrote.
        sources = draft.sources & {"corpus", "session"} or {"corpus"}
        # Most branches, for blends; drafts name the configured number.
        config = draft.model_copy(update={"sources": frozenset(sources), "max_branches": _MOST_BRANCHES})
        self._drafter = SessionDrafter(graph, config)
        self._generators: dict[MixingName, DraftGenerator] = {}

    @classmethod
    def load(
        cls, path: Path, identity: str, draft: DraftConfig, tokenizer_folder: Path | None, tokenizer_name: str
    ) -> OpenGraph:
        """Open the file that the sidecar serves.

        Args:
            path: the file.
            identity: see :func:`~speculant_drafter.explorer.frames.identity_of`.
            draft: how the sidecar drafts.
            tokenizer_folder: where the tokenizer may be, besides where it was when the graph was built.
            tokenizer_name: what to call it.

        Raises:
            DrafterUnavailableError: the file is not the one that is served.
        """
        try:
            graph = NgramGraph.load(path)
        except (GraphError, OSError) as error:
            raise DrafterUnavailableError(
                "the graph's file can't be read any more; put it back, and have the sidecar reload it (SIGHUP)"
            ) from error
        if identity_of(graph.metadata) != identity:
            raise DrafterUnavailableError(
                "the graph's file was replaced after the sidecar had loaded it; have the sidecar reload it (SIGHUP)"
            )
        return cls(graph, draft, *_tokenizer_of(graph.metadata.tokenizer, tokenizer_folder, tokenizer_name))

    def answer(self, question: Question) -> dict[str, Any]:
        """Answer a question; see docs/explorer.md for the fields.

        Raises:
            DraftRequestError: it has text where there is no tokenizer, or ids that are none of its vocabulary.
        """
        whole = self._token_ids(question)
        token_ids = whole[-MAX_TOKENS:]
        shown = explore(
            self._graph,
            token_ids,
            self._decode,
            depth=1,
            branches=question.successors,
            max_steps=question.successors,
        )
        strategy = question.strategy or self._draft.strategy
        blend = question.blend or ("calibrated" if strategy in CALIBRATED else self._draft.mixing)
        return {
            "token_ids": token_ids,
            "num_tokens": len(whole),
            "text": None if self._tokenizer is None else self._decode(token_ids),
            "text_problem": self._text_problem,
            "tokens": [self._token(token_id) for token_id in token_ids[-_SHOWN_TOKENS:]],
            "matched_order": len(shown.context),
            "num_different": shown.num_successors,
            "orders": self._orders(shown),
            "anywhere": [] if shown.context else [self._successor(step) for step in shown.steps],
            "blend": {"name": blend, **self._blended(token_ids, blend, question.successors)},
            "draft": self._drafted(token_ids, len(whole), question),
        }

    def _token_ids(self, question: Question) -> list[TokenId]:
        if question.text is not None:
            if self._tokenizer is None:
                raise DraftRequestError(self._text_problem)
            try:
                return self._tokenizer.encode_prompt(question.text) if question.text else []
            except (UnicodeEncodeError, TypeError):
                raise DraftRequestError("the text has half a character (a lone surrogate); remove it") from None
        size = self._graph.vocabulary_size
        token_ids = question.token_ids or []
        if any(token_id >= size for token_id in token_ids):
            raise DraftRequestError(f"the tokenizer has the ids 0 to {size - 1}; send those")
        return token_ids

    def _decode(self, token_ids: Sequence[TokenId]) -> str:
        return "" if self._tokenizer is None else self._tokenizer.decode(token_ids)

    def _token(self, token_id: TokenId) -> dict[str, Any]:
        return {"id": token_id, "text": None if self._tokenizer is None else self._decode([token_id])}

    def _successor(self, found: Any) -> dict[str, Any]:
        return {
            **self._token(found.token_id),
            "count": found.count,
            "probability": _rounded(found.probability),
        }

    def _orders(self, shown: Neighbourhood) -> list[dict[str, Any]]:
        return [
            {
                "order": summary.order,
                "context": [self._token(token.token_id) for token in summary.context],
                "count": summary.count,
                "num_successors": summary.num_successors,
                "successors": [self._successor(successor) for successor in summary.successors],
            }
            for summary in shown.orders
        ]

    def _blended(self, token_ids: list[TokenId], blend: BlendName, most: int) -> dict[str, Any]:
        if blend == "calibrated":
            options = DraftOptions("tree", max_depth=1, max_branches=_MOST_BRANCHES)
            draft = self._from_contexts(token_ids, len(token_ids), min(most, MAX_SUCCESSORS), 0, options)
            pairs = list(zip(draft.token_ids, draft.path_probabilities, strict=True))
            num_different = None
        else:
            chain = self._generator(blend).draft(token_ids, 1, "sampling", max_candidates=self._draft.max_candidates)
            pairs, num_different = [], 0
            if chain.proposals:
                proposal = chain.proposals[0]
                num_different = proposal.token_ids.size
                best = np.argsort(-proposal.probabilities, kind="stable")[:most]
                pairs = list(zip(proposal.token_ids[best].tolist(), proposal.probabilities[best].tolist(), strict=True))
        successors = [{**self._token(token_id), "probability": _rounded(share)} for token_id, share in pairs]
        return {"num_successors": num_different, "successors": successors}

    def _drafted(self, token_ids: list[TokenId], position: int, question: Question) -> dict[str, Any]:
        strategy = question.strategy or self._draft.strategy
        budget = question.budget or default_budget(self._draft.k)
        options = DraftOptions(strategy, max_branches=self._draft.max_branches)
        draft = self._from_contexts(token_ids, position, budget, question.seed, options)
        paths: list[list[TokenId]] = [list(token_ids[-self._graph.max_order :])]
        nodes = []
        for index, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
            context = paths[parent]
            node = {**self._token(token_id), "parent": parent, **self._evidence(context, token_id)}
            node["path_probability"] = _rounded(draft.path_probabilities[index]) if draft.path_probabilities else None
            nodes.append(node)
            paths.append([*context, token_id])
        return {"strategy": strategy, "budget": budget, "ended_early": draft.terminated_early, "nodes": nodes}

    def _evidence(self, context: list[TokenId], token_id: TokenId) -> dict[str, Any]:
        """Return what the longest context that this token ever followed says of it."""
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

    def _generator(self, mixing: MixingName) -> DraftGenerator:
        if mixing not in self._generators:
            config = self._draft.model_copy(update={"mixing": mixing})
            self._generators[mixing] = DraftGenerator(self._graph, config)
        return self._generators[mixing]


def _tokenizer_of(expected: Fingerprint, folder: Path | None, shown_name: str) -> tuple[CorpusTokenizer | None, str]:
    """Return the tokenizer of a graph if it is on this machine, and otherwise why it is not in use."""
    for name in ([] if folder is None else [str(folder)]) + [expected.name]:
        try:
            tokenizer = CorpusTokenizer.load(name, special_tokens="parse")
        except ModuleNotFoundError:
            return (
                None,
                'the sidecar is installed without tokenizers; install "speculant-graph[build]", or use token ids',
            )
        except ConfigError:
            continue
        if tokenizer.fingerprint.sha256 == expected.sha256:
            return tokenizer, ""
    return None, (
        f"the sidecar does not have tokenizer {shown_name} on its machine; set server.explorer_tokenizer to its "
        "folder, or use token ids"
    )


def _rounded(probability: float) -> float:
    return float(f"{probability:.{_DIGITS}g}")
