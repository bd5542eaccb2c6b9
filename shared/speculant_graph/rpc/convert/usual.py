"""Answers in which nothing is unusual, read by a kernel; see :mod:`speculant_graph.rpc.kernels.answer`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from speculant_graph.draft.batch import Proposals
from speculant_graph.rpc.kernels import answer
from speculant_graph.rpc.messages import SequenceAnswer, SequenceStatus, StepAnswer
from speculant_graph.types import Draft, Proposal, StrategyName

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
    sequences = _Sequences(payload, len(budgets), strategy, values)
    return StepAnswer(values[answer.GENERATION], values[answer.DRAFT_ID], sequences, values[answer.SERVER_NS])


def warm_up() -> None:
    """Compile or load the kernel, so that no step waits for it."""
    read_usual_answer(b"", [], "greedy", 0)


class _Sequences(Sequence[SequenceAnswer]):
    """What became of the sequences of a batch, made when it is looked at, from what a kernel has read and checked."""

    def __init__(self, payload: bytes, count: int, strategy: StrategyName, values: list[int]) -> None:
        self._payload = payload
        self._count = count
        self._strategy = strategy
        self._values = values
        self._made: tuple[SequenceAnswer, ...] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> SequenceAnswer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SequenceAnswer]: ...
    def __getitem__(self, index: int | slice) -> SequenceAnswer | Sequence[SequenceAnswer]:
        return self._all()[index]

    def __iter__(self) -> Iterator[SequenceAnswer]:
        return iter(self._all())

    def _all(self) -> tuple[SequenceAnswer, ...]:
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def _make(self) -> Iterator[SequenceAnswer]:
        values, count, strategy = self._values, self._count, self._strategy
        generation, draft_id, _, num_nodes, candidates, support, probabilities = values[: answer.NUM_FIRST]
        first = answer.NUM_FIRST + count  # after the statuses, which are all OK
        next_positions, lengths = values[first : first + count], values[first + count : first + 2 * count]
        ended_early = values[first + 2 * count : first + 3 * count]
        token = first + 3 * count
        bound = token + num_nodes
        has_proposals = bound < len(values)
        proposals: Sequence[Proposal] = ()
        if has_proposals:
            token_ids = np.frombuffer(self._payload, "<u4", support, candidates)
            masses = np.frombuffer(self._payload, "<f4", support, probabilities)
        for next_position, length, ended in zip(next_positions, lengths, ended_early, strict=True):
            if has_proposals:
                proposals = Proposals(values[bound : bound + length + 1], token_ids, masses) if length else ()
            tokens = tuple(values[token : token + length])
            draft = Draft(tokens, _PARENTS[:length], (), proposals, strategy, ended != 0, draft_id)
            yield SequenceAnswer(_OK, next_position, draft, generation)
            token += length
            bound += length
