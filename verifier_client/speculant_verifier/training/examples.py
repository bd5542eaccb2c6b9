"""Selects and orders recorded requests, and converts them to labelled training examples, without torch."""

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
"""Share of the documents that is held out for evaluation. With fewer held-out documents the gate could seldom decide,
because acceptance differs more between documents than between adapters."""
REPLAY_SHARE = 0.2
"""Share of replay requests among the training requests, to prevent forgetting."""

_KEY_LENGTH = 16
"""Number of hexadecimal digits of a document's key."""
_LEAST_SHARED = 16
"""If a prompt has at least this many tokens, longer prompts that begin with it count as the same conversation."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Example:
    """One request, converted to training data.

    The n labelled positions are the output positions that follow at least one token.
    """

    token_ids: NDArray[np.int64]
    """Token ids of the prompt and the output, ``[T]``."""
    first: int
    """Index of the first labelled token: ``n = T - first`` tokens are labelled."""
    label_ids: NDArray[np.int64]
    """Tokens whose target probabilities are known, ``[n, k]``; short rows are padded with their first token."""
    label_probabilities: NDArray[np.float32]
    """Probabilities of ``label_ids``, ``[n, k]``; 0 for padding. The sum of a row is 1 minus the probability of all
    other tokens."""
    is_label: NDArray[np.bool_]
    """Mask of the entries that are not padding, ``[n, k]``."""

    @property
    def num_labels(self) -> int:
        """Number of labelled positions."""
        return len(self.label_ids)


def make_example(record: RequestRecord, max_tokens: int) -> Example:
    """Convert a request to a training example. Labels are the target's top tokens or, if unknown, its output tokens.

    Args:
        record: the request.
        max_tokens: maximum number of tokens; the start of a longer request is cut off.
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
    """Return each record's document key: a digest of the document's name, or of the prompt if it has no name.

    A prompt that begins with a whole earlier prompt belongs to the same document, as a later turn of one conversation.
    """
    keys = [""] * len(records)
    first: tuple[TokenId, ...] = ()
    for index in sorted(range(len(records)), key=lambda index: records[index].prompt):
        record = records[index]
        if record.document:
            keys[index] = hashlib.sha256(record.document.encode()).hexdigest()[:_KEY_LENGTH]
            continue
        # In sorted order, a prompt is directly followed by the prompts that begin with it.
        if len(first) < _LEAST_SHARED or record.prompt[: len(first)] != first:
            first = record.prompt
        keys[index] = hashlib.sha256(np.array(first, "<i8").tobytes()).hexdigest()[:_KEY_LENGTH]
    return keys


def split(records: Sequence[RequestRecord]) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """Split records into training and held-out records, by a hash of the document.

    A document that is held out therefore stays held out, and an adapter is judged only on unseen documents. If the hash
    selects none of several documents, the document with the smallest hash is held out. A later training with more
    documents may train on this document.
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
    """Return the training items in order: each epoch has every failure once, mixed with replay.

    Every epoch samples new replay requests: :data:`REPLAY_SHARE` of the epoch, or all available ones if there are
    fewer. If there are no failures, training uses only replay requests.
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
    """Return the records that use the draft model's tokenizer and only ids within its vocabulary.

    Raises:
        ConfigError: no record uses this tokenizer with ids within the vocabulary.
    """
    readable = [record for record in records if record.tokenizer == digest and record.largest_id < vocabulary_size]
    if not readable:
        raise ConfigError(
            "all records have token ids of another tokenizer than the draft model's; name another draft model"
        )
    return readable
