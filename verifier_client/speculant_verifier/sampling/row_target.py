"""The target model at the nodes of one row's draft, as seen by verification rules.

The logits of a node are processed only when a rule reads them. Even stateful logits processors therefore see exactly
the emitted tokens. On a GPU every read is a transfer, so choices that do not depend on earlier tokens are made for all
nodes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculant_graph.errors import GenerationError, GenerationRequestError
from speculant_graph.types import Draft, TokenId
from speculant_verifier.results import TokenLogprobs
from speculant_verifier.rules import WANTS_PROPOSALS, TargetDistribution
from speculant_verifier.sampling.distribution import Distribution, gumbel_argmax, gumbel_argmaxs
from speculant_verifier.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class RowContext:
    """Sampler, sequence and draft of one row of a pass."""

    sampler: Sampler
    """The request's sampler."""
    token_ids: Sequence[TokenId]
    """The request's sequence so far; the last token is the draft's root."""
    draft: Draft
    """The draft that follows the sequence."""


class RowTarget:
    """One row's :class:`~speculant_verifier.rules.draft_target.DraftTarget`; every node is computed at most once."""

    __slots__ = (
        "_choices", "_chosen", "_distributions", "_draft", "_logits", "_sampler", "_scores", "_token_ids",
    )  # fmt: skip

    def __init__(
        self,
        sampler: Sampler,
        logits: Tensor,
        token_ids: Sequence[TokenId],
        draft: Draft,
        chosen: Sequence[tuple[TokenId, float]] = (),
    ) -> None:
        """Wrap a row.

        Args:
            sampler: the request's sampler.
            logits: shape ``[T, V]``, any float dtype; rows after the draft's last node are ignored.
            token_ids: the sequence so far; must not change while the target is used.
            draft: the draft that follows the sequence.
            chosen: choices that were already made: per node, the token and a number that is finite if the choice is
                valid.
        """
        self._sampler, self._logits, self._token_ids, self._draft = sampler, logits, token_ids, draft
        self._chosen = dict(enumerate(chosen))  # made without the constraint
        self._choices: dict[int, tuple[TokenId, float]] = {}
        self._scores: dict[int, Tensor] = {}
        self._distributions: dict[int, Distribution] = {}

    def choice_after(self, position: int) -> TokenId:
        """Return the model's token at a position, chosen with the random numbers of that position.

        Raises:
            GenerationError: the logits contain NaN or +inf, or the request's settings forbid all tokens.
        """
        if position not in self._choices:
            self._choices[position] = self._choice_after(position)
        token, evidence = self._choices[position]
        if not np.isfinite(evidence):
            raise self._void(position)
        return token

    def after(self, position: int) -> TargetDistribution:
        """Return the model's distribution at a position.

        Raises:
            GenerationError: the logits contain NaN or +inf, or the request's settings forbid all tokens.
        """
        if position not in self._distributions:
            self._distributions[position] = self._new_distribution(position)
        return self._distributions[position]

    def top_after(self, position: int, k: int) -> tuple[tuple[TokenId, ...], tuple[float, ...]]:
        """Return the k most probable tokens at a position, best first, and their log-probabilities.

        These log-probabilities are the log-softmax of the model's raw logits, before temperature and all other
        processors.
        """
        raw = self._logits[position].float()
        top = torch.topk(raw, min(k, len(raw)))
        return tuple(top.indices.tolist()), tuple((top.values - raw.logsumexp(-1)).tolist())

    def logprobs_after(self, position: int, token_id: TokenId, k: int) -> TokenLogprobs:
        """Return the log-probabilities of a token and of the k most probable tokens at a position.

        These log-probabilities are the log-softmax of the model's raw logits, before temperature and all other
        processors.
        """
        raw = self._logits[position].float()
        logprob = float(raw[token_id] - raw.logsumexp(-1))
        return TokenLogprobs(token_id, logprob, *(self.top_after(position, k) if k else ((), ())))

    def _choice_after(self, position: int) -> tuple[TokenId, float]:
        sampler, constraint = self._sampler, self._sampler.constraint
        if constraint is None:
            return self._chosen.get(position) or self._choice_of(position, self._logits[position])
        if sampler.can_choose_first:  # the choice is nearly always allowed, and a mask takes longer than a check
            token, evidence = self._chosen.get(position) or self._choice_of(position, self._logits[position])
            if np.isfinite(evidence) and constraint.allows(self._token_ids, self._path_to(position), token):
                return token, evidence
        return self._choice_of(position, self._allowed(position))

    def _allowed(self, position: int) -> Tensor:
        """Return the logits at a position, masked by the constraint on the output."""
        constraint = self._sampler.constraint
        if constraint is None:
            return self._logits[position]
        return constraint.masked(self._logits[position], self._token_ids, self._path_to(position))

    def _choice_of(self, position: int, logits: Tensor) -> tuple[TokenId, float]:
        sampler = self._sampler
        if sampler.is_plain_greedy:
            return _largest(logits)
        scores = self._scores_of(position, logits)
        if sampler.is_greedy:
            return _largest(scores)
        if scores.device.type != "cpu":
            return gumbel_argmaxs(scores[None], sampler.seed, [self._place_after(position)])[0]
        return gumbel_argmax(scores.numpy(), sampler.seed, self._place_after(position))

    def _new_distribution(self, position: int) -> Distribution:
        if self._sampler.is_greedy:
            return Distribution.of_token(self.choice_after(position))
        scores = self._scores_of(position, self._allowed(position)).cpu()
        _, largest = _largest(scores)
        if not np.isfinite(largest):
            raise self._void(position)
        return Distribution.of_scores(scores)

    def _scores_of(self, position: int, logits: Tensor) -> Tensor:
        if self._sampler.constraint is not None:
            return self._scored(position, logits)
        if position not in self._scores:  # stateful processors see every position once
            self._scores[position] = self._scored(position, logits)
        return self._scores[position]

    def _scored(self, position: int, logits: Tensor) -> Tensor:
        sampler = self._sampler
        prefix = sampler.prefix(self._token_ids, self._path_to(position)) if sampler.needs_prefix else ()
        return sampler.scores(logits, prefix)

    def _path_to(self, position: int) -> list[TokenId]:
        path: list[TokenId] = []
        while position:
            path.append(self._draft.token_ids[position - 1])
            position = self._draft.parents[position - 1]
        return path[::-1]

    def _place_after(self, position: int) -> int:
        return len(self._token_ids) + len(self._path_to(position))

    def _void(self, position: int) -> GenerationError:
        place = self._place_after(position)
        if bool(self._logits[position].isnan().any()) or bool((self._logits[position] == torch.inf).any()):
            return GenerationError(
                f"the model's logits for token {place} of the sequence hold NaN or infinity; "
                "check its weights, or use verifier.dtype float32"
            )
        return GenerationRequestError(
            f"no token is left for position {place} of the sequence; allow more by logit_bias or min_tokens"
        )


def targets_of(logits: Tensor, rows: Sequence[RowContext]) -> list[RowTarget]:
    """Return a :class:`RowTarget` for every row of a pass.

    Args:
        logits: shape ``[n, T, V]``, any float dtype and device; if it is a CPU, tokens are chosen later, when a rule
            reads them.
        rows: context of every row, in the same order.
    """
    on_cpu = logits.device.type == "cpu"
    chosen: list[Sequence[tuple[TokenId, float]]] = [()] * len(rows) if on_cpu else choices_at_once(logits, rows)
    return [
        RowTarget(row.sampler, logits[index], row.token_ids, row.draft, chosen[index]) for index, row in enumerate(rows)
    ]


def choices_at_once(logits: Tensor, rows: Sequence[RowContext]) -> list[Sequence[tuple[TokenId, float]]]:
    """Choose tokens for all nodes, with one device transfer for all greedy rows and one for each sampled row.

    Returns:
        For each row and node, a token and a number that is finite if the token is valid. The entry of a row is empty if
        its tokens must be chosen one by one.
    """
    chosen: list[Sequence[tuple[TokenId, float]]] = [()] * len(rows)
    greedy = [index for index, row in enumerate(rows) if row.sampler.is_plain_greedy]
    if greedy:
        largest = (logits if len(greedy) == len(rows) else logits[greedy]).max(-1)
        # Token ids are exact in float64, so one array and one transfer suffice.
        both = torch.stack((largest.indices.double(), largest.values.double()), -1).tolist()
        for index, nodes in zip(greedy, both, strict=True):
            chosen[index] = [(int(token), value) for token, value in nodes]
    for index, row in enumerate(rows):
        sampler = row.sampler
        if not sampler.is_greedy and not sampler.needs_prefix and sampler.config.rule not in WANTS_PROPOSALS:
            chosen[index] = _sampled_at_once(logits[index, : len(row.draft) + 1], row)
    return chosen


def _sampled_at_once(logits: Tensor, row: RowContext) -> list[tuple[TokenId, float]]:
    depths = [0]
    for parent in row.draft.parents:
        depths.append(depths[parent] + 1)
    positions = [len(row.token_ids) + depth for depth in depths]
    return gumbel_argmaxs(row.sampler.scores_of_all(logits), row.sampler.seed, positions)


def _largest(scores: Tensor) -> tuple[TokenId, float]:
    """Return the first token with the largest score, and this score; NaN counts as the largest."""
    if scores.device.type == "cpu":
        array = scores.float().numpy()
        token = int(array.argmax())  # several times faster than torch over one row
        return token, float(array[token])
    largest = scores.max(-1)
    token, value = torch.stack((largest.indices.double(), largest.values.double())).tolist()
    return int(token), value
