"""What is trained on: recorded requests as token ids and labels, which of them, and in which order. No torch here."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError
from speculant_verifier.records.record import RequestRecord

HELD_OUT_SHARE = 0.2
"""Requests differ more in how well they are drafted than adapters do: of fewer the gate could seldom be sure."""
REPLAY_SHARE = 0.2
"""Share of replay among the requests trained on, against forgetting."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Example:
    """One request. Labels are of the n output positions that have a token before them."""

    token_ids: NDArray[np.int64]
    """Prompt and output, ``[T]``."""
    first: int
    """Index of the first labelled token: ``n = T - first``."""
    label_ids: NDArray[np.int64]
    """Tokens whose probabilities are known, ``[n, k]``; rows with fewer are filled up with their first."""
    label_probabilities: NDArray[np.float32]
    """Their probabilities, ``[n, k]``; 0 where filled up. What a row lacks to 1 is of all other tokens together."""
    is_label: NDArray[np.bool_]
    """Which are not filled up, ``[n, k]``."""

    @property
    def num_labels(self) -> int:
        """Positions that are trained on."""
        return len(self.label_ids)


def make_example(record: RequestRecord, max_tokens: int) -> Example:
    """Return a request as it is trained on: by the target's most probable tokens, or by what it wrote if not known.

    Args:
        record: the request.
        max_tokens: of more tokens the first ones are left out.
    """
    token_ids = (*record.prompt, *record.output)[-max_tokens:]
    num_labels = min(len(record.output), len(token_ids) - 1)
    skipped = len(record.output) - num_labels
    rows = []
    for position in range(skipped, len(record.output)):
        known, logprobs = record.top_token_ids[position], record.top_logprobs[position]
        is_soft = known and not math.isnan(sum(logprobs))
        rows.append((known, logprobs) if is_soft else ((record.output[position],), (0.0,)))
    shape = (num_labels, max((len(ids) for ids, _ in rows), default=1))
    ids, numbers = np.zeros(shape, np.int64), np.full(shape, -np.inf)
    is_label = np.zeros(shape, np.bool_)
    for row, (known, logprobs) in enumerate(rows):
        ids[row] = known[0]
        ids[row, : len(known)], numbers[row, : len(known)], is_label[row, : len(known)] = known, logprobs, True
    return Example(
        np.array(token_ids, np.int64), len(token_ids) - num_labels, ids, np.exp(numbers, dtype=np.float32), is_label
    )


def split(records: Iterable[RequestRecord]) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """Return what is trained on and what is held out: a fifth of the failures and of replay, chosen by a hash.

    So a prompt that is held out once always is. Of two requests of a kind at least one is held out: if the hash chooses
    none, the one whose hash is smallest, and a later training with others may then train on it.
    """
    everything = list(records)
    training: list[RequestRecord] = []
    held_out: list[RequestRecord] = []
    for is_failure in (True, False):
        by_hash = sorted((each for each in everything if each.is_failure is is_failure), key=_stable)
        count = sum(_stable(each) < HELD_OUT_SHARE for each in by_hash)
        if len(by_hash) > 1:
            count = min(max(count, 1), len(by_hash) - 1)
        training += by_hash[count:]
        held_out += by_hash[:count]
    return training, held_out


def mixture(failures: Sequence[Item], replay: Sequence[Item], epochs: float) -> list[Item]:
    """Return what is trained on, in order: every failure as often as there are epochs, and among them replay.

    Every epoch draws its replay anew, :data:`REPLAY_SHARE` of it, or all that there is. Without failures replay is all
    that there is to learn.
    """
    own, other = (failures, replay) if failures else (replay, ())
    chosen = random.Random(0)
    num_replay = min(len(other), round(len(own) * REPLAY_SHARE / (1 - REPLAY_SHARE)))
    order: list[Item] = []
    total = max(1, round(epochs * (len(own) + num_replay)))
    for _ in range(math.ceil(epochs)):
        epoch = [*own, *chosen.sample(other, num_replay)]
        chosen.shuffle(epoch)
        order += epoch
    return order[:total]


def of_tokenizer(records: Sequence[RequestRecord], digest: str, vocabulary_size: int) -> list[RequestRecord]:
    """Return the records whose token ids mean what they mean to the draft model, and are ids that it has.

    Raises:
        ConfigError: there are none.
    """
    readable = [record for record in records if record.tokenizer == digest and record.largest_id < vocabulary_size]
    if not readable:
        raise ConfigError(
            "all records have token ids of another tokenizer than the draft model's; name another draft model"
        )
    return readable


def _stable(record: RequestRecord) -> float:
    """Return a number in [0, 1) that depends on the prompt alone, on every machine.

    The same prompt again, collected twice, is on the same side: it would be judged by what was learned by heart.
    """
    return int.from_bytes(hashlib.sha256(np.array(record.prompt, "<i8").tobytes()).digest()[:8]) / 2**64
