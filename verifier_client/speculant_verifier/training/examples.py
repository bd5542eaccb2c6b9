"""What is trained on: recorded requests as token ids and labels, which of them, and in which order. No torch here."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import ConfigError
from speculant_graph.types import TokenId
from speculant_verifier.records.record import RequestRecord

HELD_OUT_SHARE = 0.3
"""Share of the documents: of fewer the gate could seldom be sure, as they differ more in how well they are drafted than
adapters do."""
REPLAY_SHARE = 0.2
"""Share of replay among the requests trained on, against forgetting."""

_KEY_LENGTH = 16
"""Hexadecimal digits of a document's key."""
_LEAST_SHARED = 16
"""Tokens of a prompt from which on another that begins with all of it continues its conversation."""

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


def documents_of(records: Sequence[RequestRecord]) -> list[str]:
    """Return a key of each record's document: a digest of its name, or where it has none of its prompt.

    A prompt that begins with a whole earlier one is of the same document: they are turns of one conversation.
    """
    keys = [""] * len(records)
    first: tuple[TokenId, ...] = ()
    for index in sorted(range(len(records)), key=lambda index: records[index].prompt):
        record = records[index]
        if record.document:
            keys[index] = hashlib.sha256(record.document.encode()).hexdigest()[:_KEY_LENGTH]
            continue
        # All prompts that begin with another come right after it.
        if len(first) < _LEAST_SHARED or record.prompt[: len(first)] != first:
            first = record.prompt
        keys[index] = hashlib.sha256(np.array(first, "<i8").tobytes()).hexdigest()[:_KEY_LENGTH]
    return keys


def split(records: Sequence[RequestRecord]) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """Return what is trained on and what is held out: a share of the documents, chosen by a hash.

    So a document that is held out once always is: an adapter is judged by text of which it has not learned a part. Of
    two documents one is held out: if the hash chooses none, the one whose hash is smallest, and a later training with
    others may then train on it.
    """
    keys = documents_of(records)
    ordered = sorted(set(keys))
    count = sum(int(key, 16) < HELD_OUT_SHARE * 16**_KEY_LENGTH for key in ordered)
    if len(ordered) > 1:
        count = min(max(count, 1), len(ordered) - 1)
    chosen = set(ordered[:count])
    parts: tuple[list[RequestRecord], list[RequestRecord]] = [], []
    for record, key in zip(records, keys, strict=True):
        parts[key in chosen].append(record)
    return parts


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
