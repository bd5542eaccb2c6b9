"""Converts the drafter's messages between bytes and this project's types.

The C++ core reads and writes step messages; protobuf handles all rarer messages. Every decoder checks that a message
follows the specification of the wire protocol. For a message that breaks the specification, the decoder raises
:class:`DraftRequestError` with a one-line reason. The decoder's caller checks values that depend on the graph (token
ids of a request, graph names).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, get_args

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from grpc import StatusCode

from speculant_graph._core import RequestWriter, StepResponse, read_answer, read_answer_step_id, read_step_id
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftLimitError,
    DraftRequestError,
    SpeculantError,
    UnservedRequestError,
)
from speculant_graph.rpc.status import CODE_OF_NUMBER, advised_delay_s, from_status, to_status
from speculant_graph.rpc.step_messages import OpenRequest, OpenResponse
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.strategies import NGRAM_STRATEGIES, STRATEGIES, StrategyName
from speculant_graph.types import (
    DEFAULT_OPTIONS,
    MAX_TENANT_CHARACTERS,
    CouplingName,
    DraftOptions,
    Fingerprint,
    SiblingsName,
    SourceName,
)

__all__ = ["read_answer_step_id", "read_step_id"]

_SHA256_BYTES = 32


def _numbers(names: Any, enum: Any, prefix: str) -> dict[Any, int]:
    """Return the wire format's number for each name in a Literal; leave out names that have no number."""
    numbers = dict(enum.items())
    fields = {name: prefix + name.upper().replace("-", "_") for name in get_args(names)}
    return {name: numbers[field] for name, field in fields.items() if field in numbers}


_NUMBERS: dict[str, dict[Any, int]] = {
    "strategy": {name: STRATEGIES[name].number for name in NGRAM_STRATEGIES},
    "coupling": _numbers(CouplingName, pb.Coupling, "COUPLING_"),
    "siblings": {"none": pb.SIBLINGS_UNSPECIFIED} | _numbers(SiblingsName, pb.Siblings, "SIBLINGS_"),
}
"""Options whose values are names in Python and numbers on the wire."""
_SOURCE_BITS = _numbers(SourceName, pb.SourceBit, "SOURCE_BIT_")
_TRAVELLING = frozenset(pb.StrategyOptions.DESCRIPTOR.fields_by_name)
"""Options that requests to a sidecar may set."""


@lru_cache(maxsize=256)
def encode_options(options: DraftOptions) -> bytes:
    """Encode drafting options as a ``StrategyOptions`` message.

    Raises:
        DraftRequestError: an option has a value that no sidecar serves, such as a verifier's own strategy.
    """
    wanted = {name: value for name, value in asdict(options).items() if value is not None and name in _TRAVELLING}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            if wanted[name] not in numbers:
                raise DraftRequestError(
                    f"no sidecar serves {{field}} {wanted[name]}", fix=f"choose {' or '.join(numbers)}", field=name
                )
            wanted[name] = numbers[wanted[name]]
    if options.sources is not None:
        wanted["sources"] = sum(_SOURCE_BITS[source] for source in options.sources)
    return pb.StrategyOptions(**wanted).SerializeToString()


@lru_cache(maxsize=256)
def decode_options(payload: bytes) -> DraftOptions:
    """Decode a ``StrategyOptions`` message into drafting options.

    Raises:
        UnservedRequestError: the message has an unknown value that must not be ignored.
        DraftRequestError: the message can't be parsed, or a value is invalid. The drafter checks later whether values
            are within their bounds.
    """
    try:
        message = pb.StrategyOptions.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the options can't be parsed; send StrategyOptions") from None
    wanted = {field.name: value for field, value in message.ListFields()}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            names = {value: own for own, value in numbers.items()}
            if wanted[name] not in names:
                raise UnservedRequestError(f"{name} {wanted[name]} is not served; choose one of {', '.join(numbers)}")
            wanted[name] = names[wanted[name]]
    if message.HasField("sources"):
        wanted["sources"] = frozenset(name for name, bit in _SOURCE_BITS.items() if message.sources & bit)
        if message.sources >= 2 * max(_SOURCE_BITS.values()):
            raise UnservedRequestError(f"sources {message.sources} are not served; choose from SourceBit")
    return DraftOptions(**wanted)


def encode_open_request(request: OpenRequest) -> pb.OpenSessionRequest:
    """Return the OpenSession request ``request`` as a protobuf message."""
    return pb.OpenSessionRequest(
        session_id=request.session_id,
        graph=request.graph,
        tokenizer_sha256=_digest_bytes(request.tokenizer_sha256),
        tenant=request.tenant,
        learn=request.learn,
    )


def decode_open_request(message: pb.OpenSessionRequest) -> OpenRequest:
    """Return the OpenSession request in the protobuf message ``message``.

    Raises:
        DraftRequestError: the request breaks a rule of the wire protocol.
    """
    if message.session_id == 0:
        raise DraftRequestError(
            "session id 0 means no session", fix="choose another, at random for instance", field="session_id"
        )
    if len(message.tenant) > MAX_TENANT_CHARACTERS:
        raise DraftLimitError(
            f"the {{field}}'s name has {len(message.tenant)} characters",
            fix=f"send at most {MAX_TENANT_CHARACTERS}",
            field="tenant",
        )
    num_bytes = len(message.tokenizer_sha256)
    if num_bytes not in (0, _SHA256_BYTES):
        raise DraftRequestError(
            f"{{field}} has {num_bytes} bytes", fix=f"send {_SHA256_BYTES}", field="tokenizer_sha256"
        )
    return OpenRequest(
        session_id=message.session_id,
        tokenizer_sha256=message.tokenizer_sha256.hex(),
        tenant=message.tenant,
        graph=message.graph,
        learn=message.learn,
    )


def encode_open_response(answer: OpenResponse) -> pb.OpenSessionResponse:
    """Return the OpenSession response ``answer`` as a protobuf message."""
    return pb.OpenSessionResponse(
        graph_generation=answer.graph_generation,
        vocabulary_size=answer.tokenizer.vocabulary_size,
        tokenizer_sha256=_digest_bytes(answer.tokenizer.sha256),
        tokenizer_name=answer.tokenizer.name,
        max_order=answer.max_order,
        next_position=answer.next_position,
    )


def decode_open_response(message: pb.OpenSessionResponse) -> OpenResponse:
    """Return the OpenSession response in the protobuf message ``message``."""
    tokenizer = Fingerprint(message.tokenizer_name, message.tokenizer_sha256.hex(), message.vocabulary_size)
    return OpenResponse(message.graph_generation, tokenizer, message.max_order, message.next_position)


def _digest_bytes(sha256: str) -> bytes:
    try:
        return bytes.fromhex(sha256)
    except ValueError:
        raise DraftRequestError(f"{sha256!r} is not the hex digest of a tokenizer") from None


def request_writer(options: DraftOptions = DEFAULT_OPTIONS, graph: str = "") -> RequestWriter:
    """Return a writer for the request message of a step.

    Args:
        options: the drafting options.
        graph: name of the graph for sequences without a session; empty for the default graph.
    """
    return RequestWriter(graph.encode(), encode_options(options))


def decode_step_answer(
    payload: bytes,
    *,
    budgets: Sequence[int],
    strategy: StrategyName,
    vocabulary_size: int,
    is_enveloped: bool = True,
) -> StepResponse:
    """Decode and check the response to a step.

    Args:
        payload: the encoded StreamDraftResponse, or an encoded DraftResponse alone.
        budgets: requested node budget, per sequence.
        strategy: the requested strategy.
        vocabulary_size: exclusive upper bound of the token ids in drafts and in q.
        is_enveloped: whether ``payload`` is a StreamDraftResponse.

    Raises:
        SpeculantError: the step failed, for the reason in the message.
        DraftRequestError: the response breaks a rule of the wire protocol. A draft that is decoded without an error can
            be verified safely.
    """
    answer = read_answer(payload, is_enveloped, budgets, vocabulary_size, strategy)
    if isinstance(answer, bytes):
        raise _failure_of(answer)
    return answer


def encode_step_failure(step_id: int, error: BaseException) -> bytes:
    """Return the StreamDraftResponse for a failed step, with an error text that this project wrote."""
    code, message = to_status(error)
    failure = pb.StepError(code=code.value[0], message=message)
    if (delay_s := advised_delay_s(error)) is not None:
        failure.retry_delay.CopyFrom(duration_of(delay_s))
    return pb.StreamDraftResponse(step_id=step_id, error=failure).SerializeToString()


def duration_of(seconds: float) -> Duration:
    """Return seconds as a protobuf Duration."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _failure_of(payload: bytes) -> SpeculantError:
    """Return the exception for an encoded ``StepError`` message."""
    try:
        failed = pb.StepError.FromString(payload)
    except DecodeError:
        return DrafterUnavailableError("the server is not a drafter, or a broken one; check the address")
    code = CODE_OF_NUMBER.get(failed.code, StatusCode.UNKNOWN)
    return from_status(code, failed.message, failed.retry_delay.ToNanoseconds() / 1e9)
