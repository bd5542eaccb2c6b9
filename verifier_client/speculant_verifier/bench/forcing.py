"""Makes a model write a recorded output: real passes, real drafts, and the record as the model's choice.

After every prefix of a request the recorded token gets a logit above all others. So plain decoding, drafts and
transformers' own loops all write the record, and the time that each of them takes can be compared on text that is worth
replaying, whatever the weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from speculant_graph.types import Draft, TokenId
from speculant_verifier.bench.cases import Case
from speculant_verifier.cache import SlotCache

_LOGIT = 1e4
"""Above all logits of a model, also after temperatures and penalties; finite in every number type."""


class ForcedRows:
    """Finds out which request each row of a cache belongs to, and forces its record upon the logits.

    A row is recognised by what it begins with when its first draft is verified; of requests that begin alike, the one
    that was given first.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        """Take the requests of a run; those without a record are left to the model."""
        self._cases = cases
        self._free = list(range(len(cases)))
        self._read: dict[int, list[TokenId]] = {}  # what was read of the prompts of rows that are not recognised yet
        self._owners: dict[int, Case] = {}

    def read(self, token_ids: Sequence[Sequence[TokenId]], cache: SlotCache, rows: Sequence[int]) -> None:
        """Take note of a stretch of prompts that is about to be read."""
        for ids, row in zip(token_ids, rows, strict=True):
            self._begin_if_new(cache, row)
            self._read.setdefault(row, []).extend(ids)

    def force(
        self,
        logits: Tensor,
        token_ids: Sequence[Sequence[TokenId]],
        cache: SlotCache,
        rows: Sequence[int],
        drafts: Sequence[Draft] | None,
    ) -> None:
        """Change the logits of a pass over drafts, ``[n, T, V]``, that is not committed yet."""
        places: list[tuple[int, int, TokenId]] = []
        for index, (ids, row) in enumerate(zip(token_ids, rows, strict=True)):
            self._begin_if_new(cache, row)
            case = self._owners.get(row) or self._recognise(row, ids[0])
            if case.forced is None:
                continue
            first = cache.lengths[row] + 1 - len(case.prompt)
            depths = [0] if drafts is None else _depths(drafts[index])
            places += [
                (index, node, case.forced[first + depth])
                for node, depth in enumerate(depths)
                if first + depth < len(case.forced)
            ]
        if places:
            batch, nodes, tokens = zip(*places, strict=True)
            logits[list(batch), list(nodes), list(tokens)] = _LOGIT

    def _begin_if_new(self, cache: SlotCache, row: int) -> None:
        if cache.lengths[row] == 0 and row in self._owners:
            del self._owners[row]

    def _recognise(self, row: int, last: TokenId) -> Case:
        prompt = (*self._read.pop(row, ()), last)
        number = next(number for number in self._free if self._cases[number].prompt == prompt)
        self._free.remove(number)
        self._owners[row] = self._cases[number]
        return self._owners[row]


@contextmanager
def forced_outputs(model: nn.Module, cases: Sequence[Case]) -> Iterator[None]:
    """Force records upon transformers' own loops over a model, whose rows are the requests in this order.

    It changes the logits where the model returns them. A logits processor would do the same, but loops with processors
    copy logits that they leave alone otherwise, and assistants would be given it, too.
    """

    def force(_: nn.Module, __: tuple[Any, ...], given: dict[str, Any], output: Any) -> None:
        logits: Tensor = output.logits
        positions: Tensor = given["position_ids"]
        last = positions[:, -logits.shape[1] :].tolist()
        places: list[tuple[int, int, TokenId]] = []
        for index, case in enumerate(cases):
            for node, position in enumerate(last[index if len(last) > 1 else 0]):
                place = position + 1 - len(case.prompt)
                if case.forced is not None and 0 <= place < len(case.forced):
                    places.append((index, node, case.forced[place]))
        if places:
            batch, nodes, tokens = zip(*places, strict=True)
            logits[list(batch), list(nodes), list(tokens)] = _LOGIT

    if all(case.forced is None for case in cases):
        yield
        return
    handle = model.register_forward_hook(force, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _depths(draft: Draft) -> list[int]:
    depths = [0]
    for parent in draft.parents:
        depths.append(depths[parent] + 1)
    return depths
