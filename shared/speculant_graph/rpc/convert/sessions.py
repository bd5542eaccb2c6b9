"""The opening of sessions."""

from __future__ import annotations

from speculant_graph.draft.cost import CostCurve
from speculant_graph.errors import ConfigError, DraftLimitError, DraftRequestError
from speculant_graph.rpc.messages import OpenAnswer, OpenRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Fingerprint

MAX_COST_POINTS = 256
"""Most points of a cost curve."""
MAX_TENANT_CHARACTERS = 256
"""Longest name of a tenant."""
_SHA256_BYTES = 32


def encode_open_request(request: OpenRequest) -> pb.OpenSessionRequest:
    """Return the message for ``request``."""
    message = pb.OpenSessionRequest(
        session_id=request.session_id,
        graph=request.graph,
        tokenizer_sha256=_digest_bytes(request.tokenizer_sha256),
        tenant=request.tenant,
        learn=request.learn,
    )
    if request.cost is not None:
        message.verify_cost.tokens.extend(request.cost.tokens)
        message.verify_cost.relative_costs.extend(request.cost.relative)
    if request.idle_timeout_s is not None:
        message.idle_timeout.FromNanoseconds(round(request.idle_timeout_s * 1e9))
    return message


def decode_open_request(message: pb.OpenSessionRequest) -> OpenRequest:
    """Return the session that ``message`` asks for.

    Raises:
        DraftRequestError: it breaks a rule of the wire.
    """
    if message.session_id == 0:
        raise DraftRequestError("session id 0 means no session; choose another, at random for instance")
    if len(message.tenant) > MAX_TENANT_CHARACTERS:
        raise DraftLimitError(
            f"the tenant's name has {len(message.tenant)} characters; send at most {MAX_TENANT_CHARACTERS}"
        )
    num_bytes = len(message.tokenizer_sha256)
    if num_bytes not in (0, _SHA256_BYTES):
        raise DraftRequestError(f"tokenizer_sha256 has {num_bytes} bytes; send {_SHA256_BYTES}")
    return OpenRequest(
        session_id=message.session_id,
        tokenizer_sha256=message.tokenizer_sha256.hex(),
        tenant=message.tenant,
        graph=message.graph,
        idle_timeout_s=_idle_timeout_s(message),
        learn=message.learn,
        cost=_cost(message.verify_cost) if message.HasField("verify_cost") else None,
    )


def encode_open_answer(answer: OpenAnswer) -> pb.OpenSessionResponse:
    """Return the message for ``answer``."""
    return pb.OpenSessionResponse(
        graph_generation=answer.graph_generation,
        vocabulary_size=answer.tokenizer.vocabulary_size,
        tokenizer_sha256=_digest_bytes(answer.tokenizer.sha256),
        tokenizer_name=answer.tokenizer.name,
        max_order=answer.max_order,
        next_position=answer.next_position,
    )


def decode_open_answer(message: pb.OpenSessionResponse) -> OpenAnswer:
    """Return the answer to the opening of a session."""
    tokenizer = Fingerprint(message.tokenizer_name, message.tokenizer_sha256.hex(), message.vocabulary_size)
    return OpenAnswer(message.graph_generation, tokenizer, message.max_order, message.next_position)


def _cost(message: pb.VerifyCost) -> CostCurve:
    if len(message.tokens) > MAX_COST_POINTS:
        raise DraftLimitError(f"verify_cost has {len(message.tokens)} points; send at most {MAX_COST_POINTS}")
    try:
        return CostCurve(tuple(message.tokens), tuple(message.relative_costs))
    except ConfigError as error:
        raise DraftRequestError(f"verify_cost: {error}") from None


def _idle_timeout_s(message: pb.OpenSessionRequest) -> float | None:
    if not message.HasField("idle_timeout"):
        return None
    seconds = message.idle_timeout.seconds + message.idle_timeout.nanos * 1e-9
    if seconds <= 0:
        raise DraftRequestError("idle_timeout is not positive; leave it unset for the server's default")
    return seconds


def _digest_bytes(sha256: str) -> bytes:
    try:
        return bytes.fromhex(sha256)
    except ValueError:
        raise DraftRequestError(f"{sha256!r} is not the hex digest of a tokenizer") from None
