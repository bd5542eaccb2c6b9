"""Steps: what a client asks."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import changed
from speculant_graph.errors import DraftLimitError, DraftRequestError, UnservedRequestError
from speculant_graph.rpc import mirror
from speculant_graph.rpc.convert.checks import expect, per_sequence
from speculant_graph.rpc.messages import SequenceRequest, StepBatch, StepOptions, StepRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import CouplingName, Feedback, MixingName, SiblingsName, SourceName, StrategyName

STRATEGY_NUMBERS: dict[StrategyName, pb.Strategy] = {
    "greedy": pb.STRATEGY_GREEDY,
    "sampling": pb.STRATEGY_SAMPLING,
    "adaptive": pb.STRATEGY_ADAPTIVE,
    "tree": pb.STRATEGY_TREE,
    "nasd": pb.STRATEGY_NASD,
    "specexec": pb.STRATEGY_SPECEXEC,
    "beam": pb.STRATEGY_BEAM,
}
"""Strategies by their number on the wire."""
_MIXING_NUMBERS: dict[MixingName, pb.Mixing] = {"longest": pb.MIXING_LONGEST, "attention": pb.MIXING_ATTENTION}
COUPLING_NUMBERS: dict[CouplingName, pb.Coupling] = {"none": pb.COUPLING_NONE, "gumbel": pb.COUPLING_GUMBEL}
"""Couplings by their number on the wire."""
_SIBLINGS_NUMBERS: dict[SiblingsName, pb.Siblings] = {
    "none": pb.SIBLINGS_UNSPECIFIED,
    "without-replacement": pb.SIBLINGS_WITHOUT_REPLACEMENT,
    "independent": pb.SIBLINGS_INDEPENDENT,
}
_SOURCE_BITS: dict[SourceName, int] = {
    "corpus": pb.SOURCE_BIT_CORPUS,
    "session": pb.SOURCE_BIT_SESSION,
    "learned": pb.SOURCE_BIT_LEARNED,
    "recycled": pb.SOURCE_BIT_RECYCLED,
}
_NUMBERS: dict[str, dict[Any, Any]] = {
    "strategy": STRATEGY_NUMBERS,
    "mixing": _MIXING_NUMBERS,
    "coupling": COUPLING_NUMBERS,
    "siblings": _SIBLINGS_NUMBERS,
}
"""Options that are named here and numbered on the wire."""
_NO_TOKEN = (1 << 32) - 1


def encode_step_request(request: StepRequest) -> bytes:
    """Return the DraftRequest for ``request``; arrays that hold nothing but defaults stay empty.

    Raises:
        DraftRequestError: a number does not fit into its field, or budgets are mixed.
    """
    sequences = request.sequences
    message = mirror.DraftRequest(graph=request.graph)
    try:
        if options := _encode_options(request.options):
            message.options.append(options)
        _put(message, "context_lengths", [len(sequence.token_ids) for sequence in sequences])
        _put(message, "context_tokens", list(chain.from_iterable([sequence.token_ids for sequence in sequences])))
        for name, values in (
            ("session_ids", [sequence.session_id or 0 for sequence in sequences]),
            ("positions", [sequence.position for sequence in sequences]),
            ("seeds", [sequence.seed for sequence in sequences]),
        ):
            if any(values):
                _put(message, name, values)
        budgets = [sequence.node_budget for sequence in sequences if sequence.node_budget is not None]
        if budgets and len(budgets) < len(sequences):
            raise DraftRequestError("node budgets are mixed; give one to every sequence of a step or to none")
        _put(message, "node_budgets", budgets)
        _put_feedback(message, sequences)
    except (OverflowError, ValueError, TypeError):
        raise DraftRequestError("a number of this step does not fit; token ids are whole numbers from 0 on") from None
    payload: bytes = message.SerializeToString()
    return payload


def _put(message: Any, name: str, values: Any) -> None:
    if len(values):
        getattr(message, name).append(mirror.packed(name, values))


def _put_feedback(message: Any, sequences: tuple[SequenceRequest, ...]) -> None:
    told = [sequence.feedback for sequence in sequences]
    rows = [feedback.rows for feedback in told if feedback is not None and len(feedback.nodes)]
    if not rows:
        return
    width = max(each.shape[1] for each in rows)
    padded = np.full((sum(len(each) for each in rows), width), _NO_TOKEN, np.int64)
    start = 0
    for each in rows:
        padded[start : start + len(each), : each.shape[1]] = np.where(each < 0, _NO_TOKEN, each)
        start += len(each)
    _put(message, "feedback_draft_ids", [0 if feedback is None else feedback.draft_id for feedback in told])
    _put(message, "feedback_row_counts", [0 if feedback is None else len(feedback.nodes) for feedback in told])
    _put(message, "feedback_nodes", [node for feedback in told if feedback is not None for node in feedback.nodes])
    message.feedback_width = width
    _put(message, "feedback_tokens", padded.reshape(-1))


@lru_cache(maxsize=256)
def _encode_options(options: StepOptions) -> bytes:
    wanted = {name: value for name, value in asdict(options).items() if value is not None}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            wanted[name] = numbers[wanted[name]]
    if options.sources is not None:
        wanted["sources"] = sum(_SOURCE_BITS[source] for source in options.sources)
    return pb.StrategyOptions(**wanted).SerializeToString()


def decode_step_request(payload: bytes, *, max_sequences: int, max_tokens: int, max_nodes: int) -> StepBatch:
    """Return the step that a DraftRequest asks for.

    Args:
        payload: the message.
        max_sequences: most sequences in it.
        max_tokens: most context tokens in it.
        max_nodes: most nodes asked for, for any sequence.

    Raises:
        DraftLimitError: it is over one of the limits.
        UnservedRequestError: it asks for a strategy or an option that has no meaning here.
        DraftRequestError: it breaks a rule of the wire.
    """
    message = _parsed(payload)
    lengths = mirror.array(message, "context_lengths")
    count = lengths.size
    if count > max_sequences:
        raise DraftLimitError(f"{count} sequences in one message; send at most {max_sequences}")
    tokens = mirror.array(message, "context_tokens")
    if tokens.size > max_tokens:
        raise DraftLimitError(f"{tokens.size} context tokens in one message; send at most {max_tokens}, in parts")
    budgets = mirror.array(message, "node_budgets")
    if budgets.size and budgets.max() > max_nodes:
        raise DraftLimitError(f"{budgets.max()} nodes asked for; ask for at most {max_nodes}")
    return StepBatch(
        graph=message.graph,
        options=_options_of(message.options),
        session_ids=per_sequence("session_ids", mirror.array(message, "session_ids"), count),
        positions=per_sequence("positions", mirror.array(message, "positions"), count),
        contexts=_parts("context_tokens", tokens.astype(np.int64), lengths.tolist()),
        node_budgets=per_sequence("node_budgets", budgets, count) if budgets.size else None,
        seeds=per_sequence("seeds", mirror.array(message, "seeds"), count),
        feedback=_decode_feedback(message, count),
    )


def _parsed(payload: bytes) -> Any:
    """Return the mirror of a DraftRequest, or the public message where the mirror would miss something."""
    try:
        message = mirror.DraftRequest.FromString(payload)
        return message if mirror.is_usual(message) else pb.DraftRequest.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the message can't be parsed; send one of this service's protocol") from None


def _parts(name: str, values: NDArray[Any], lengths: list[int]) -> list[NDArray[Any]]:
    expect(name, values, sum(lengths), "the sum of its lengths")
    parts = []
    start = 0
    for length in lengths:
        parts.append(values[start : start + length])
        start += length
    return parts


def _options_of(options: Any) -> StepOptions:
    if isinstance(options, pb.StrategyOptions):
        return _decode_options(options.SerializeToString())
    return _decode_options(options[0] if len(options) == 1 else b"".join(options))


@lru_cache(maxsize=256)
def _decode_options(payload: bytes) -> StepOptions:
    """Return a StrategyOptions as options; what is not known here, and may not be ignored, is refused by name."""
    try:
        message = pb.StrategyOptions.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the options can't be parsed; send StrategyOptions") from None
    wanted = {field.name: value for field, value in message.ListFields()}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            names = {number: own for own, number in numbers.items()}
            if wanted[name] not in names:
                raise UnservedRequestError(f"{name} {wanted[name]} is not served; ask for one of {', '.join(numbers)}")
            wanted[name] = names[wanted[name]]
    if message.HasField("sources"):
        wanted["sources"] = frozenset(name for name, bit in _SOURCE_BITS.items() if message.sources & bit)
        if message.sources >= 2 * max(_SOURCE_BITS.values()):
            raise UnservedRequestError(f"sources {message.sources} are not served; ask for those of SourceBit")
    if not 0.0 <= message.min_path_probability <= 1.0:  # written so that NaN fails
        raise DraftRequestError("min_path_probability is no probability; send one from 0 to 1")
    options = StepOptions(**wanted)
    changed(DraftConfig(), options)  # looks at bounds
    return options


def _decode_feedback(message: Any, count: int) -> list[Feedback | None] | None:
    nodes, tokens = mirror.array(message, "feedback_nodes"), mirror.array(message, "feedback_tokens")
    draft_ids = per_sequence("feedback_draft_ids", mirror.array(message, "feedback_draft_ids"), count)
    row_counts = per_sequence("feedback_row_counts", mirror.array(message, "feedback_row_counts"), count)
    width = message.feedback_width
    node_parts = _parts("feedback_nodes", nodes, row_counts)
    expect("feedback_tokens", tokens, nodes.size * width, "feedback_width times the number of rows")
    if not tokens.size:
        return None
    rows = tokens.astype(np.int64).reshape(-1, width)
    rows[rows == _NO_TOKEN] = -1
    feedback: list[Feedback | None] = []
    start = 0
    for draft_id, part in zip(draft_ids, node_parts, strict=True):
        known = Feedback(draft_id, part.tolist(), rows[start : start + part.size]) if part.size else None
        feedback.append(known)
        start += part.size
    return feedback
