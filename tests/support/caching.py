"""Slow references for the cache: logits from a forward pass without a cache."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from speculant_graph.types import Draft
from speculant_verifier.cache import SlotCache
from speculant_verifier.model import TargetModel
from support.drafters import chain

TOLERANCE = 1e-4


def fresh_logits(target: TargetModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return the logits after every token, from one pass without a cache."""
    with torch.inference_mode():
        return target.model(torch.tensor([list(token_ids)], device=target.device), use_cache=False).logits[0]


def random_tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(250) for _ in range(count)]


def random_draft(generator: random.Random, size: int, shape: str) -> Draft:
    """Return a chain or a tree of random tokens; siblings may have equal tokens."""
    tokens = random_tokens(generator, size)
    if shape == "chain":
        return chain(tokens)
    return Draft(tuple(tokens), tuple(generator.randrange(index + 1) for index in range(size)))


def path_to(draft: Draft, node: int) -> list[int]:
    """Return the draft nodes from the root's child to ``node``, where 0 is the root and j + 1 is draft node j."""
    path = []
    while node:
        path.append(node - 1)
        node = draft.parents[node - 1]
    return path[::-1]


class Rows:
    """Sequences in a cache, verified and rolled back at random; their logits are compared with a fresh pass."""

    def __init__(self, target: TargetModel, cache: SlotCache, seed: object) -> None:
        self.target, self.cache = target, cache
        self.generator = random.Random(str(seed))
        self.tokens: dict[int, list[int]] = {}

    def start(self, row: int, length: int, chunk: int = 10**9) -> None:
        """Begin a sequence; its last token stays pending."""
        self.cache.clear(row)
        self.tokens[row] = random_tokens(self.generator, length)
        for first in range(0, length - 1, chunk):
            self.target.prefill([self.tokens[row][: length - 1][first : first + chunk]], self.cache, [row])

    def verify(
        self,
        rows: Sequence[int],
        shape: str = "tree",
        largest: int = 9,
        looked_at: int = 2,
        *,
        new: Sequence[int] = (1, 1, 2, 5),
    ) -> float:
        """Run one pass over rows; return the largest error of the compared logits, NaN if one is NaN.

        Args:
            rows: the rows.
            shape: ``chain`` or ``tree``.
            largest: maximum number of draft nodes per row.
            looked_at: random nodes per row whose logits are compared, besides the root.
            new: numbers of pending tokens after the pass, chosen at random.
        """
        generator = self.generator
        drafts = [random_draft(generator, generator.randint(0, largest), shape) for _ in rows]
        pending = [self.tokens[row][self.cache.lengths[row] :] for row in rows]
        logits = self.target.forward(pending, self.cache, rows, drafts)
        errors = []
        paths = []
        for index, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            for node in {0, *(generator.randint(0, len(draft)) for _ in range(looked_at))}:
                prefix = self.tokens[row] + [draft.token_ids[j] for j in path_to(draft, node)]
                expected = fresh_logits(self.target, prefix)[-1]
                errors.append((logits[index, node] - expected).abs().max())
            accepted = path_to(draft, generator.randint(0, len(draft)))
            paths.append([*range(len(pending[index])), *(len(pending[index]) + j for j in accepted)])
            # Several tokens may follow the accepted ones, as if they came from another source.
            more = random_tokens(generator, generator.choice(new))
            self.tokens[row] += [draft.token_ids[j] for j in accepted] + more
        self.cache.commit_all(rows, paths)
        return float(torch.stack(errors).max())  # unlike Python's max, it keeps NaN
