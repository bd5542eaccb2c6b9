"""Answers in which nothing is unusual, read by a kernel; see :mod:`speculant_graph.rpc.kernels.answer`."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from speculant_graph.draft.batch import Proposals
from speculant_graph.rpc.kernels import answer
from speculant_graph.rpc.messages import SequenceAnswer, SequenceStatus, StepAnswer
from speculant_graph.types import Draft, StrategyName

_OK = SequenceStatus.OK
_ROOM = 1 << 16
"""Numbers of the largest answer that is usual: 32,000 nodes."""
_PARENTS = tuple(range(1_024))


class _Buffers(threading.local):
    """Memory of every thread for what a kernel writes."""

    def __init__(self) -> None:
        self.numbers = np.zeros(_ROOM, np.int64)


_BUFFERS = _Buffers()


def read_usual_answer(
    payload: bytes, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int
) -> StepAnswer | None:
    """Return the answer of a StreamDraftResponse that holds chains; None if it must be read by other means.

    Args:
        payload: the message.
        budgets: most nodes asked for, per sequence.
        strategy: the strategy asked for.
        vocabulary_size: token ids must be below it.
    """
    numbers = _BUFFERS.numbers
    data = np.frombuffer(payload, np.uint8)
    size = answer.read_answer(data, np.array(budgets, np.int64), vocabulary_size, numbers)
    if size < 0:
        return None
    values: list[int] = numbers[:size].tolist()
    generation, draft_id, server_ns, num_nodes, candidates, support, probabilities = values[: answer.NUM_FIRST]
    count = len(budgets)
    first = answer.NUM_FIRST + count  # after the statuses, which are all OK
    next_positions, lengths = values[first : first + count], values[first + count : first + 2 * count]
    ended_early = values[first + 2 * count : first + 3 * count]
    tokens = first + 3 * count
    bounds = tokens + num_nodes
    has_proposals = bounds < size
    if has_proposals:
        token_ids = np.frombuffer(payload, "<u4", support, candidates)
        masses = np.frombuffer(payload, "<f4", support, probabilities)
    sequences = []
    for place in range(count):
        length = lengths[place]
        proposals: Sequence[object] = ()
        if has_proposals and length:
            proposals = Proposals(values[bounds : bounds + length + 1], token_ids, masses)
        draft = Draft(
            tuple(values[tokens : tokens + length]),
            _PARENTS[:length],
            (),
            proposals,  # type: ignore[arg-type]
            strategy,
            ended_early[place] != 0,
            draft_id,
        )
        sequences.append(SequenceAnswer(_OK, next_positions[place], draft, generation))
        tokens += length
        bounds += length
    return StepAnswer(generation, draft_id, tuple(sequences), server_ns)
