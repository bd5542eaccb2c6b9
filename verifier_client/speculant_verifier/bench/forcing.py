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

from speculant_graph.types import TokenId
from speculant_verifier.bench.cases import Case

_LOGIT = 1e4
"""Above all logits of a model, also after temperatures and penalties; finite in every number type."""


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
