"""Nonsense of every kind at a drafter that keeps drafting for a good client."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from speculant_graph.bench.faults_clients import DRAFT, run_in_loop, steps_of, tokens_of
from speculant_graph.bench.faults_connections import send_malformed, slow_connections
from speculant_graph.bench.faults_mutations import MutatedCall, mutated_calls
from speculant_graph.bench.faults_server import FaultyServer, Stage, running_drafter
from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.rpc.addresses import grpc_target
from speculant_graph.rpc.status import status_of_number
from speculant_graph.rpc.v1 import drafter_pb2 as pb

GOOD_DEADLINE_MS = 100.0
"""What a step of the good client may wait; it shares its processor with what sends the nonsense."""

_PACKAGE = "/speculant_graph.rpc.v1."
_CALLERS = 8
_CONNECTIONS_AT_ONCE = 20
_TIMEOUT_S = 10.0
_SETTLE_S = 15.0
_GOOD_PAUSE_S = 0.005
_MAX_SESSIONS = 200
_TEXT_OF_PYTHON = re.compile(
    r"Traceback|\b\w+(?:Error|Exception)\b|\bFile \"|\.py\b|<class|\b0x[0-9a-f]{6,}|(?:^|[\s'\"(=])/(?:[\w.-]+/)+"
)
_END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


def shows_python(text: str) -> bool:
    """Return whether a text for clients has what Python says: a class of exceptions, a traceback, a path."""
    return _TEXT_OF_PYTHON.search(text) is not None


@dataclass(slots=True)
class _Seen:
    """What the server said."""

    statuses: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)

    def note(self, code: grpc.StatusCode, *texts: object) -> None:
        """Note the outcome of a message."""
        self.statuses[code.name] += 1
        for text in texts:
            shown = text.decode("latin-1") if isinstance(text, bytes) else str(text or "")
            if shows_python(shown):
                self.leaks.append(shown)


class _GoodClient:
    """A client in a thread that drafts all the time."""

    def __init__(self, address: str, texts: list[list[int]]) -> None:
        config = ClientConfig.model_validate({"address": address, "deadline_ms": GOOD_DEADLINE_MS})
        self._client = DrafterClient(config, tokenizer=None, draft=DRAFT)
        self._steps = steps_of(texts[:2], 100)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._answered_s = time.monotonic()
        self.steps = self.answered = self.wrong = 0
        self.longest_gap_s = 0.0

    def __enter__(self) -> _GoodClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()

    @property
    def reopened(self) -> int:
        return self._client.statistics.reopened_sessions

    def reset(self) -> None:
        """Forget what was counted."""
        self.steps = self.answered = self.wrong = 0
        self.longest_gap_s = 0.0

    def _run(self) -> None:
        expected: list[tuple[int, ...]] = []
        while not self._is_over.wait(_GOOD_PAUSE_S):
            drafts = self._client.draft(self._steps)
            self.steps += 1
            now_s = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._answered_s)
            if all(drafts):
                expected = expected or tokens_of(drafts)
                self.answered += 1
                self.wrong += tokens_of(drafts) != expected
                self._answered_s = now_s


def measure_fuzz(
    stage: Stage, num_messages: int, num_connections: int, num_slow: int, slow_s: float, seed: int
) -> dict[str, Any]:
    """Send nonsense; return the figures.

    Args:
        stage: graph and texts.
        num_messages: mutated messages.
        num_connections: malformed connections.
        num_slow: half-open connections that are held.
        slow_s: for so long.
        seed: of all that is sent.
    """
    with running_drafter(stage, ["--max-sessions", str(_MAX_SESSIONS), "--busy-s", "0"]) as server:
        return run_in_loop(_measure(stage, server, num_messages, num_connections, num_slow, slow_s, seed))


async def _measure(
    stage: Stage, server: FaultyServer, num_messages: int, num_connections: int, num_slow: int, slow_s: float, seed: int
) -> dict[str, Any]:
    with _GoodClient(server.address, stage.texts) as good:
        # What a first message of each kind leaves behind is no leak.
        warm_up = mutated_calls(max(num_messages // 4, 50), seed + 1, stage.texts[0], stage.path.stem)
        await _send_all(stage, server, warm_up, "fuzz: warm-up", _Seen())
        await _connect_all(stage, server, max(num_connections // 4, 10), seed + 1, "fuzz: warm-up")
        await _hold_slow(stage, server, num_slow, min(slow_s, 1.0), "fuzz: warm-up")
        descriptors = await _settled_descriptors(server, 0)
        resident, num_errors = server.resident_bytes, len(server.logged_errors)
        good.reset()

        seen = _Seen()
        calls = mutated_calls(num_messages, seed, stage.texts[0], stage.path.stem)
        took_s = await _send_all(stage, server, calls, "fuzz: mutated messages", seen)
        kinds = await _connect_all(stage, server, num_connections, seed, "fuzz: malformed connections")
        sent_away = await _hold_slow(stage, server, num_slow, slow_s, "fuzz: slow connections")
        descriptors_after = await _settled_descriptors(server, descriptors)
        resident_after = server.resident_bytes
        is_serving = server.is_alive
        with suppress(SpeculantError):
            await asyncio.to_thread(server.await_serving)
        return {
            "seed": seed,
            "messages": num_messages,
            "messages_per_s": round(num_messages / took_s, 1),
            "statuses": dict(seen.statuses.most_common()),
            "leaks": len(seen.leaks),
            "leak": seen.leaks[0] if seen.leaks else "",
            "connections": num_connections,
            "connection_kinds": dict(kinds.most_common()),
            "slow": num_slow,
            "slow_s": slow_s,
            "slow_sent_away": sent_away,
            "good_steps": good.steps,
            "good_answered": good.answered,
            "good_wrong": good.wrong,
            "good_reopened": good.reopened,
            "good_longest_gap_ms": round(good.longest_gap_s * 1e3, 1),
            "resident_warm": resident,
            "resident_after": resident_after,
            "descriptors_warm": descriptors,
            "descriptors_after": descriptors_after,
            "logged_errors": len(server.logged_errors) - num_errors,
            "logged_error": (server.logged_errors[num_errors:] or [""])[0],
            "serving": is_serving and server.is_alive,
        }


async def _send_all(stage: Stage, server: FaultyServer, calls: Sequence[MutatedCall], label: str, seen: _Seen) -> float:
    """Send messages, several at a time; return the seconds it took."""
    started_s = time.perf_counter()
    remaining = iter(enumerate(calls))
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(grpc_target(server.address), options) as drafter,
        grpc.aio.insecure_channel(grpc_target(server.admin_address), options) as admin,
    ):

        async def send() -> None:
            stream: Any = None
            for number, call in remaining:
                stage.tell(label, number, len(calls))
                channel = admin if call.is_admin else drafter
                if call.is_stream:
                    stream = await _send_on_stream(channel, stream, call, seen)
                else:
                    await _send(channel, call, seen)
            if stream is not None:
                stream.cancel()

        await asyncio.gather(*(send() for _ in range(_CALLERS)))
    return time.perf_counter() - started_s


async def _send(channel: Any, call: MutatedCall, seen: _Seen) -> None:
    method = channel.unary_unary(f"{_PACKAGE}{call.service}/{call.method}", None, None)
    try:
        await method(call.payload, timeout=_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        seen.note(error.code(), error.details(), *_values(error.trailing_metadata()))
    else:
        seen.note(grpc.StatusCode.OK)


async def _send_on_stream(channel: Any, stream: Any, call: MutatedCall, seen: _Seen) -> Any:
    """Send on a stream, or on a new one; return it, or None if it has ended."""
    if stream is None:
        stream = channel.stream_stream(f"{_PACKAGE}{call.service}/{call.method}", None, None)()
    try:
        await stream.write(call.payload)
        payload = await asyncio.wait_for(stream.read(), _TIMEOUT_S)
    except TimeoutError:
        seen.note(grpc.StatusCode.DEADLINE_EXCEEDED)
        return None
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        payload = _END_OF_STREAM
    if payload is _END_OF_STREAM:
        trailing = await stream.trailing_metadata()
        seen.note(await stream.code(), await stream.details(), *_values(trailing))
        return None
    try:
        answer = pb.StreamDraftResponse.FromString(payload)
    except DecodeError:
        seen.note(grpc.StatusCode.DATA_LOSS)
        return stream
    if answer.HasField("error"):
        seen.note(status_of_number(answer.error.code), answer.error.message)
    else:
        seen.note(grpc.StatusCode.OK)
    return stream


def _values(metadata: Any) -> list[object]:
    return [value for _, value in metadata or ()]


async def _connect_all(stage: Stage, server: FaultyServer, number: int, seed: int, label: str) -> Counter[str]:
    """Make malformed connections, several at a time; return how many of each kind."""
    kinds: Counter[str] = Counter()
    random = Random(seed)
    remaining = iter(range(number))

    async def connect(numbers: Iterator[int]) -> None:
        for done in numbers:
            stage.tell(label, done, number)
            kinds[await send_malformed(server.socket, server.tcp, random)] += 1

    await asyncio.gather(*(connect(remaining) for _ in range(_CONNECTIONS_AT_ONCE)))
    return kinds


async def _hold_slow(stage: Stage, server: FaultyServer, number: int, seconds: float, label: str) -> int:
    """Hold slow connections; return how many the server closed."""
    with slow_connections(number, server.socket, server.tcp) as slow:
        await slow.hold(seconds, lambda share: stage.tell(label, round(share * 100), 100))
        return slow.sent_away


async def _settled_descriptors(server: FaultyServer, enough: int) -> int:
    """Return how many descriptors the server has open when they are few enough, or get fewer no more."""
    gc.collect()  # connections of ours last as long as calls that failed, and their errors refer to them
    give_up_s = time.monotonic() + _SETTLE_S
    number, unchanged_s = server.num_descriptors, time.monotonic()
    while number > enough and time.monotonic() < give_up_s and time.monotonic() - unchanged_s < _SETTLE_S / 2:
        await asyncio.sleep(0.1)
        now = server.num_descriptors
        if now < number:
            unchanged_s = time.monotonic()
        number = now
    return number
