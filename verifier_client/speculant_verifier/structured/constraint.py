"""Applies the grammar constraint of one sequence at any draft node, and adds forced tokens to drafts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from llguidance import LLMatcher
from numpy.typing import NDArray
from torch import Tensor

from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import Draft, TokenId

_MOST_FORCED = 2_048
"""Maximum number of forced tokens per query, because computing more forced tokens in every step takes too long."""


class Constraint:
    """Moves a grammar's matcher to any queried position, by rolling back and consuming tokens.

    Not thread-safe. A constraint serves one sequence, to which tokens are only appended. The paths of the sequence's
    drafts may be queried in any order.
    """

    def __init__(
        self, matcher: LLMatcher, prompt_length: int, vocabulary_size: int, end_token_ids: Collection[TokenId]
    ) -> None:
        """Create a constraint from a matcher in its initial state.

        Args:
            matcher: the matcher of the grammar.
            prompt_length: number of tokens before the output.
            vocabulary_size: number of the model's logits per position.
            end_token_ids: tokens that end the output; they are allowed when it is complete.
        """
        self._ends = end_token_ids
        self._matcher, self._prompt_length, self._vocabulary_size = matcher, prompt_length, vocabulary_size
        self._seen: list[TokenId] = []
        self._num_committed = 0  # number of these that belong to the sequence itself; it only grows
        self._forces_much = False
        self._masked: NDArray[np.float32] | None = None
        self._bits = np.zeros(-(-vocabulary_size // 32), np.int32)

    def allows(self, token_ids: Sequence[TokenId], path: Sequence[TokenId], token: TokenId) -> bool:
        """Return whether a token is allowed after a sequence and a path of its draft."""
        if self._is_over(token_ids, path):
            return True
        self._go_to(token_ids, path)
        return self._may_come(token)

    def masked(self, logits: Tensor, token_ids: Sequence[TokenId], path: Sequence[TokenId]) -> Tensor:
        """Return the logits ``[V]`` after a sequence and a path of its draft, with minus infinity for forbidden tokens.

        On a CPU, the result is valid only until the next call, because its memory is reused. Writing to new memory
        would take longer than computing a mask.

        Raises:
            GenerationRequestError: the grammar has become too complex to enforce.
        """
        if self._is_over(token_ids, path):
            return logits
        self._go_to(token_ids, path)
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            raise GenerationRequestError(f"the output's form is too complex ({reason_of(self._matcher)}); simplify it")
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocabulary_size].view(np.bool_)
        if logits.device.type != "cpu":
            return torch.where(torch.from_numpy(allowed).to(logits.device), logits, -torch.inf)
        if self._masked is None:
            self._masked = np.empty(self._vocabulary_size, np.float32)
        self._masked.fill(-np.inf)
        np.copyto(self._masked, logits.float().numpy(), where=allowed)
        return torch.from_numpy(self._masked)

    def usable(self, token_ids: Sequence[TokenId], draft: Draft) -> list[int]:
        """Return the allowed nodes of a draft, including all their ancestors."""
        paths: list[list[TokenId] | None] = [[]]
        kept = []
        for node, (token, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
            above = paths[parent]
            if above is None:
                paths.append(None)
                continue
            self._go_to(token_ids, above)
            may_come = self._may_come(token)
            if may_come:
                kept.append(node)
            paths.append([*above, token] if may_come and token not in self._ends else None)
        return kept

    def forced(self, token_ids: Sequence[TokenId], path: Sequence[TokenId] = ()) -> list[TokenId]:
        """Return the tokens that must come next; empty if the grammar leaves a choice."""
        if self._is_over(token_ids, path) or self._forces_much:
            return []
        self._go_to(token_ids, path)
        forced = list(self._matcher.compute_ff_tokens())
        self._forces_much = len(forced) > _MOST_FORCED
        forced = forced[:_MOST_FORCED]
        # Forced bytes may spell a control token and be tokenised as this token, which is not allowed.
        return forced[: self._matcher.validate_tokens(forced)] if forced else []

    def _is_over(self, token_ids: Sequence[TokenId], path: Sequence[TokenId]) -> bool:
        """Return whether the output has ended.

        After the end of the output, the matcher must not be used, because it can't roll back an end token.
        """
        if path:
            return path[-1] in self._ends
        return len(token_ids) > self._prompt_length and token_ids[-1] in self._ends

    def _may_come(self, token: TokenId) -> bool:
        if token in self._ends:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]))

    def _go_to(self, token_ids: Sequence[TokenId], path: Sequence[TokenId]) -> None:
        wanted = [*token_ids[self._prompt_length + self._num_committed :], *path]
        seen = self._seen[self._num_committed :]
        common = 0
        while common < min(len(seen), len(wanted)) and seen[common] == wanted[common]:
            common += 1
        if common < len(seen):
            self._matcher.rollback(len(seen) - common)
            del self._seen[self._num_committed + common :]
        if rest := wanted[common:]:
            count = self._matcher.try_consume_tokens(rest)
            self._seen += rest[:count]
            if count < len(rest):  # all tokens are allowed, but a limit may be exceeded
                raise GenerationRequestError(
                    f"the output's form is too complex ({reason_of(self._matcher)}); simplify it"
                )
        self._num_committed = len(token_ids) - self._prompt_length


def reason_of(matcher: LLMatcher) -> str:
    """Return the reason why a matcher stopped, in one short line without the matcher's state and grammar."""
    lines = [line.strip() for line in matcher.get_error().splitlines() if line.strip()] or ["it is too large"]
    if lines[0] == "NoExtensionBias":
        return "no output has this form"
    more = next((line for line in lines[1:] if line.startswith("error: ")), "")
    return f"{lines[0]} {more}".strip()[:200]


def with_forced(constraint: Constraint, token_ids: Sequence[TokenId], draft: Draft, most_nodes: int) -> Draft:
    """Add forced tokens to a draft, at the root and after its most probable path, up to ``most_nodes`` nodes.

    New nodes are numbered after all existing nodes.
    """
    draft = _extended(draft, 0, constraint.forced(token_ids), most_nodes)
    best = 0
    for node, parent in enumerate(draft.parents, start=1):
        if parent == best:
            best = node
    return _extended(draft, best, constraint.forced(token_ids, path_to(draft, best)), most_nodes) if best else draft


def path_to(draft: Draft, node: int) -> list[TokenId]:
    """Return the tokens on the path from the root to a draft node; node 0 is the root, which has no token."""
    path: list[TokenId] = []
    while node:
        path.append(draft.token_ids[node - 1])
        node = draft.parents[node - 1]
    return path[::-1]


def _extended(draft: Draft, node: int, token_ids: Sequence[TokenId], most_nodes: int) -> Draft:
    """Return the draft with a path added below a node; nodes that exist are not added again."""
    tokens, parents = list(draft.token_ids), list(draft.parents)
    probabilities, sources = list(draft.path_probabilities), list(draft.sources)
    children = {(parent, token): child for child, (parent, token) in enumerate(zip(parents, tokens, strict=True), 1)}
    for token in token_ids:
        if (node, token) in children:
            node = children[node, token]
            continue
        if len(tokens) >= most_nodes:
            break
        if probabilities or not tokens:
            probabilities.append(probabilities[node - 1] if node else 1.0)
        if sources:
            sources.append("ngrams")
        tokens.append(token)
        parents.append(node)
        node = len(tokens)
    if len(tokens) == len(draft):
        return draft
    return replace(
        draft,
        token_ids=tuple(tokens),
        parents=tuple(parents),
        path_probabilities=tuple(probabilities),
        proposals=(),
        sources=tuple(sources),
    )
