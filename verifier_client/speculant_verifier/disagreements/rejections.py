"""Which drafted tokens were rejected, and what the target preferred: the records of detailed mode.

A drafted token counts as rejected where the target was asked at its very prefix and took another one: it is a child of
the root or of an accepted node, and not the token that was emitted there. What was drafted behind a rejected token was
never judged, and is no disagreement.

The target's probabilities are those of its raw logits, before a request's processors and temperature. So records of
greedy and sampled requests are of one kind, and a drafter that learns from them learns the model, not the settings of a
request. The token that the target chose is what the request did emit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculant_graph.types import Draft, TokenId
from speculant_verifier.disagreements.recorder import Disagreement
from speculant_verifier.rules.target import Verdict, children_of


@dataclass(frozen=True, slots=True)
class TargetView:
    """What the target thinks after one node."""

    top_token_ids: tuple[TokenId, ...]
    """Its most probable tokens, best first."""
    top_probabilities: tuple[float, ...]
    """Theirs."""
    probabilities: tuple[float, ...]
    """Those of the tokens that were asked for."""


TargetLook = Callable[[int, Sequence[TokenId]], TargetView]
"""Looks at the target after a node (0 is the root, j+1 node j) and at its probabilities of tokens. It is called only
where a token was rejected, and once for each such place."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where disagreements come from: what all those of one step have in common."""

    request_id: str
    session_id: int
    rule: str
    acceptance_rate: float
    time_s: float


def disagreements_of(
    known: Sequence[TokenId],
    draft: Draft,
    verdict: Verdict,
    look: TargetLook,
    origin: Origin,
    *,
    context_tokens: int,
) -> list[Disagreement]:
    """Return the disagreements of one verified draft, in the order of their positions.

    Args:
        known: the sequence before the draft, prompt included.
        draft: what was verified.
        verdict: the outcome. Where fewer tokens were emitted, as behind an end token, the rest was not judged.
        look: the target.
        origin: what all of them have in common.
        context_tokens: last tokens of the context that are kept.
    """
    children = children_of(draft.parents)
    emitted = list(verdict.token_ids)
    found: list[Disagreement] = []
    for depth, chosen in enumerate(emitted):
        node = verdict.path[depth - 1] + 1 if depth else 0
        rejected = [child for child in children[node] if draft.token_ids[child] != chosen]
        if not rejected:
            continue
        view = look(node, [chosen, *(draft.token_ids[child] for child in rejected)])
        context = _tail(known, emitted[:depth], context_tokens)
        for child, probability in zip(rejected, view.probabilities[1:], strict=True):
            found.append(
                Disagreement(
                    request_id=origin.request_id,
                    session_id=origin.session_id,
                    position=len(known) + depth,
                    context=context,
                    drafted=draft.token_ids[child],
                    chosen=chosen,
                    drafted_probability=probability,
                    chosen_probability=view.probabilities[0],
                    top_token_ids=view.top_token_ids,
                    top_probabilities=view.top_probabilities,
                    path_probability=draft.path_probabilities[child] if draft.path_probabilities else None,
                    q=_proposed(draft, child),
                    strategy=draft.strategy,
                    rule=origin.rule,
                    acceptance_rate=origin.acceptance_rate,
                    time_s=origin.time_s,
                )
            )
    return found


def _tail(known: Sequence[TokenId], emitted: Sequence[TokenId], size: int) -> tuple[TokenId, ...]:
    first = max(0, len(known) + len(emitted) - size)
    return (*known[first:], *emitted[max(0, first - len(known)) :])


def _proposed(draft: Draft, node: int) -> float | None:
    if not draft.proposals:
        return None
    proposal = draft.proposals[node]
    place = int(np.searchsorted(proposal.token_ids, draft.token_ids[node]))
    if place == len(proposal.token_ids) or proposal.token_ids[place] != draft.token_ids[node]:
        return 0.0
    return float(proposal.probabilities[place])


def view_of(logits: Tensor, token_ids: Sequence[TokenId], top_k: int) -> TargetView:
    """Return what raw logits say, with six digits and by one transfer from their device.

    Args:
        logits: those after one node, shape ``[V]``, any float type.
        token_ids: tokens whose probabilities are asked for.
        top_k: most probable tokens wanted.
    """
    with torch.no_grad():
        probabilities = torch.softmax(logits, -1, dtype=torch.float32)
        top = probabilities.topk(min(top_k, len(probabilities)))
        asked = probabilities[torch.tensor(token_ids, dtype=torch.int64, device=logits.device)]
        # float64 holds every token id and every float32.
        values: list[float] = torch.cat([top.indices.double(), top.values.double(), asked.double()]).tolist()
    size = len(top.indices)
    # Six digits are more than a model's own rounding leaves, and half as long as seventeen.
    shares = [float(f"{value:.6g}") for value in values[size:]]
    return TargetView(tuple(map(int, values[:size])), tuple(shares[:size]), tuple(shares[size:]))
