"""Messages of the wire that are right, almost right, and anything but; what they are is a function of the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message

from speculant_graph.rpc.v1 import drafter_pb2 as pb

_DRAFTER, _ADMIN = "DrafterService", "DrafterAdminService"
_MOST_MUTATIONS = 4
_LONGEST_NOISE = 200
_LARGE_BYTES = 1 << 20
_LARGE_ONE_IN = 500
_NUMBERS = (0, 1, 2, 7, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_FRACTIONS = (0.0, -1.0, 1e-30, 0.5, 1.0, 1e30, float("inf"), float("-inf"), float("nan"))
_STRINGS = ("", "graph", "../graph", "/etc/passwd", "a" * 300, ".", "\x00", "é", "missing.pkl", "graph.pkl/x")


@dataclass(frozen=True, slots=True)
class MutatedCall:
    """A message to be sent."""

    service: str
    """Its service, without the package."""
    method: str
    """Its method."""
    payload: bytes
    """The message."""

    @property
    def is_admin(self) -> bool:
        """Whether it goes to the admin service."""
        return self.service == _ADMIN

    @property
    def is_stream(self) -> bool:
        """Whether it is a message of a stream."""
        return self.method == "StreamDraft"


def mutated_calls(number: int, seed: int, text: Sequence[int], graph: str) -> list[MutatedCall]:
    """Return calls that a fuzzing client makes.

    Args:
        number: how many.
        seed: the same seed gives the same calls.
        text: token ids to make right messages of.
        graph: name of the default graph; calls that would rightly unload or replace it are left out.
    """
    random = Random(seed)
    kinds = _kinds(text)
    weights = [weight for *_, weight, _ in kinds]
    calls: list[MutatedCall] = []
    while len(calls) < number:
        service, method, message_class, _, make = random.choices(kinds, weights)[0]
        payload = mutated(make(random), make(random), random)
        if not _is_rightful_change(message_class, payload, graph):
            calls.append(MutatedCall(service, method, payload))
    return calls


def mutated(message: Message, other: Message, random: Random) -> bytes:
    """Return the bytes of a message after up to four mutations; seldom none.

    Args:
        message: what is mutated, in place.
        other: what parts may come from.
        random: decides.
    """
    for _ in range(random.randrange(_MOST_MUTATIONS)):
        _set_a_field(message, random)
    payload = message.SerializeToString()
    if random.randrange(_LARGE_ONE_IN) == 0:
        return payload + random.randbytes(_LARGE_BYTES)
    spare = other.SerializeToString()
    for _ in range(random.randrange(_MOST_MUTATIONS) if random.random() < 0.6 else 0):
        payload = random.choice(_BYTE_MUTATIONS)(payload, spare, random)
    return payload


def _kinds(text: Sequence[int]) -> list[tuple[str, str, type[Message], int, Callable[[Random], Message]]]:
    """Return service, method, class, weight and maker of messages."""

    def step(random: Random) -> pb.DraftRequest:
        size = random.choice((0, 1, 1, 2, 5, 40))
        lengths = [random.choice((0, 1, 4, 30)) for _ in range(size)]
        starts = [random.randrange(max(len(text) - 30, 1)) for _ in range(size)]
        pairs = zip(starts, lengths, strict=True)
        tokens = [token for start, length in pairs for token in text[start : start + length]]
        feedback = random.randrange(3) if size else 0
        return pb.DraftRequest(
            session_ids=[random.choice((0, random.randrange(1, 300))) for _ in range(size)],
            positions=[random.choice((0, 0, 4, 30)) for _ in range(size)],
            context_lengths=lengths,
            context_tokens=tokens,
            node_budgets=[random.choice((0, 4, 16, 64)) for _ in range(size)],
            seeds=[random.getrandbits(64) for _ in range(size)],
            options=pb.StrategyOptions(
                strategy=pb.Strategy.Name(random.choice(pb.Strategy.values())), max_candidates=random.randrange(12)
            ),
            feedback_draft_ids=[random.randrange(20_000) for _ in range(size)] if feedback else [],
            feedback_row_counts=[feedback, *([0] * (size - 1))] if feedback else [],
            feedback_nodes=list(range(feedback)),
            feedback_width=3 if feedback else 0,
            feedback_tokens=[random.choice(text) for _ in range(3 * feedback)],
        )

    def session(random: Random) -> pb.OpenSessionRequest:
        return pb.OpenSessionRequest(
            session_id=random.randrange(1, 300),
            tenant=random.choice(("", "one", "two")),
            learn=random.random() < 0.5,
            idle_timeout=Duration(seconds=random.randrange(1, 60)),
        )

    def name(random: Random) -> str:
        return random.choice(("none", "other", ""))

    makers: list[tuple[str, str, type[Message], int, Callable[[Random], Message]]] = [
        (_DRAFTER, "Draft", pb.DraftRequest, 35, step),
        (_DRAFTER, "StreamDraft", pb.StreamDraftRequest, 25,
         lambda random: pb.StreamDraftRequest(step_id=random.getrandbits(8), draft=step(random))),
        (_DRAFTER, "OpenSession", pb.OpenSessionRequest, 15, session),
        (_DRAFTER, "CloseSession", pb.CloseSessionRequest, 10,
         lambda random: pb.CloseSessionRequest(session_id=random.randrange(1, 300))),
        (_ADMIN, "ListGraphs", pb.ListGraphsRequest, 1, lambda random: pb.ListGraphsRequest()),
        (_ADMIN, "GetStatistics", pb.GetStatisticsRequest, 1, lambda random: pb.GetStatisticsRequest()),
        (_ADMIN, "SaveLearnedState", pb.SaveLearnedStateRequest, 2,
         lambda random: pb.SaveLearnedStateRequest(tenant=random.choice(("", "one")))),
        (_ADMIN, "LoadGraph", pb.LoadGraphRequest, 4,
         lambda random: pb.LoadGraphRequest(name=name(random), path=random.choice(("missing.pkl", "drafter.log")))),
        (_ADMIN, "ReloadGraph", pb.ReloadGraphRequest, 4,
         lambda random: pb.ReloadGraphRequest(name=name(random), path=random.choice(("missing.pkl", "drafter.log")))),
        (_ADMIN, "UnloadGraph", pb.UnloadGraphRequest, 3, lambda random: pb.UnloadGraphRequest(name=name(random))),
    ]  # fmt: skip
    return makers


def _is_rightful_change(message_class: type[Message], payload: bytes, graph: str) -> bool:
    """Return whether a message rightly asks for what would take the good client's graph away."""
    if message_class not in (pb.UnloadGraphRequest, pb.ReloadGraphRequest):
        return False
    try:
        request: Any = message_class.FromString(payload)
    except DecodeError:
        return False
    is_served = request.name in ("", graph)
    return is_served and not getattr(request, "path", "")


def _set_a_field(message: Message, random: Random) -> None:
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    if not fields:
        return
    field = random.choice(fields)
    if field.is_repeated:
        array = getattr(message, field.name)
        match random.randrange(4):
            case 0 if field.message_type is None:
                array.append(_value(field, random))
            case 1 if len(array) and field.message_type is None:
                array[random.randrange(len(array))] = _value(field, random)
            case 2 if len(array):
                del array[random.randrange(len(array)) :]
            case _ if field.message_type is None:
                array.extend([_value(field, random)] * random.choice((1, 3, 300, 5_000)))
    elif field.message_type is not None:
        _set_a_field(getattr(message, field.name), random)
    else:
        setattr(message, field.name, _value(field, random))


def _value(field: Any, random: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_BOOL:
        return random.random() < 0.5
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return random.choice(_FRACTIONS)
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(_STRINGS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.randbytes(random.choice((0, 1, 31, 32, 33)))
    largest = {
        FieldDescriptor.TYPE_FIXED64: (1 << 64) - 1, FieldDescriptor.TYPE_UINT64: (1 << 64) - 1,
        FieldDescriptor.TYPE_FIXED32: (1 << 32) - 1, FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
        FieldDescriptor.TYPE_INT64: (1 << 63) - 1,
    }.get(field.type, (1 << 31) - 1)  # fmt: skip
    number = random.choice(_NUMBERS) & largest
    signed = field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_ENUM)
    return -number if signed and random.random() < 0.3 else number


def _cut(payload: bytes, _other: bytes, random: Random) -> bytes:
    return payload[: random.randrange(len(payload) + 1)]


def _flip(payload: bytes, _other: bytes, random: Random) -> bytes:
    if not payload:
        return payload
    flipped = bytearray(payload)
    for _ in range(random.randrange(1, 8)):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def _insert(payload: bytes, _other: bytes, random: Random) -> bytes:
    place = random.randrange(len(payload) + 1)
    return payload[:place] + random.randbytes(random.randrange(1, 12)) + payload[place:]


def _splice(payload: bytes, other: bytes, random: Random) -> bytes:
    return payload[: random.randrange(len(payload) + 1)] + other[random.randrange(len(other) + 1) :]


def _repeat(payload: bytes, _other: bytes, random: Random) -> bytes:
    start, end = sorted(random.randrange(len(payload) + 1) for _ in range(2))
    return payload[:end] + payload[start:end] * random.randrange(1, 4) + payload[end:]


def _noise(_payload: bytes, _other: bytes, random: Random) -> bytes:
    return random.randbytes(random.randrange(_LONGEST_NOISE))


_BYTE_MUTATIONS: tuple[Callable[[bytes, bytes, Random], bytes], ...] = (_cut, _flip, _insert, _splice, _repeat, _noise)
