"""The client of a drafter sidecar: a lock, a stream and its thread round the core, which decides everything.

Sending is handing bytes to a queue, which happens under the lock, so that messages leave in the order of their numbers;
all that may take longer happens after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
from loguru import logger

from speculant_graph.client.batches import InFlightBatch
from speculant_graph.client.core import ClientCore
from speculant_graph.client.session_registry import CloseSession, DropStream, Opening, OpenSession, Report, Send
from speculant_graph.client.step_streams import GrpcStream, SocketStream
from speculant_graph.errors import (
    DrafterUnavailableError,
    SpeculantError,
    TokenizerMismatchError,
    UnknownGraphError,
)
from speculant_graph.rpc import convert
from speculant_graph.rpc.addresses import socket_path
from speculant_graph.rpc.channel import Endpoint
from speculant_graph.rpc.status import error_of
from speculant_graph.rpc.step_messages import OpenRequest, OpenResponse
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
from speculant_graph.strategies import STRATEGIES
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    DrafterState,
    DrafterStatistics,
    Fingerprint,
    PassReport,
    SequenceStep,
    SessionOptions,
)

if TYPE_CHECKING:
    from speculant_graph.config import ClientConfig, DraftConfig

_STREAM_METHOD = "/speculant_graph.rpc.v1.DrafterService/StreamDraft"
"""Called without serializers: its bytes are made and read by our own codec."""
_OPEN_S = 0.5
"""Least time that a session has to be opened in."""
_OPEN_GRACE_S = 0.05
"""How much longer than a call of OpenSession its outcome is waited for, as it has the reason."""
_JOIN_TIMEOUT_S = 1.0
_T = TypeVar("_T")


class DrafterClient:
    """Drafts from a sidecar. May be shared between threads, but not with a process that is forked later.

    Examples:
        >>> config = ClientConfig(address="unix:///tmp/speculant-drafter/drafter.sock")
        >>> with DrafterClient(config, tokenizer=None, draft=DraftConfig()) as client:
        ...     client.open(1)
        ...     [draft] = client.draft([SequenceStep(1, [17, 4, 9], node_budget=8)])
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        tokenizer: Fingerprint | None,
        draft: DraftConfig,
        strict: bool = False,
        wants_proposals: bool = True,
        host_name: str = "",
    ) -> None:
        """Make a client; it connects when the first session is opened.

        Args:
            config: address, patience and credentials.
            tokenizer: the verifier's; None leaves the comparison out.
            draft: how to draft; what is not set is the sidecar's. The number of nodes comes with every step.
            strict: raise if a session can't be opened, instead of going on without drafts.
            wants_proposals: have the distributions q of sampling strategies sent; a verifier whose rule needs none
                saves the sidecar most of its work.
            host_name: whose certificate the sidecar shows; empty: that of the address's own host.

        Raises:
            ConfigError: the address is malformed, credentials can't be used, or a setting is the sidecar's own.
        """
        from speculant_graph.draft.options import options_of  # settings are there, so what they load is, too

        self._strict = strict
        self.capabilities = STRATEGIES[draft.strategy]
        """What its drafts are like."""
        self.deadline_s = config.deadline_ms / 1e3
        """How long a step is waited for."""
        self._open_call_s = max(_OPEN_S, self.deadline_s)
        self.open_deadline_s = self._open_call_s + _OPEN_GRACE_S
        """How long an opening is waited for."""
        # What is not set is left to the sidecar, but for the strategy, which drafts name.
        options = replace(options_of(draft), strategy=draft.strategy, omit_proposals=not wants_proposals)
        opening = OpenRequest(
            session_id=1,
            tokenizer_sha256=tokenizer.sha256 if tokenizer is not None else "",
            tenant=config.tenant,
            graph=config.graph,
            learn=config.learn,
        )
        convert.encode_open_request(opening)  # mistakes show here rather than with the first session, or its steps
        convert.encode_options(options)
        self._core = ClientCore(
            config.address,
            config.deadline_ms,
            options=options,
            strategy=draft.strategy,
            opening=opening,
            tokenizer_name=tokenizer.name if tokenizer is not None else "",
        )
        self._endpoint = Endpoint.of(config.address, config, host_name)
        self._metadata = self._endpoint.metadata or None
        self._socket_path = None if self._metadata else socket_path(config.address)
        self._connect()
        self._lock = threading.Lock()
        self._stream: GrpcStream | SocketStream | None = None
        self._num_streams = 0  # so far
        self._calls: set[Any] = set()
        self._is_closed = False

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""
        return self._core.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""
        with self._lock:
            return self._core.statistics()

    @property
    def is_paused(self) -> bool:
        """Whether the sidecar is not asked now, as it failed."""
        return self._core.breaker.is_down

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session; if the drafter does not answer, its first steps try again.

        Args:
            session_id: the caller's id.
            options: what this session wants besides the client's settings.

        Returns:
            Why the session gets no drafts, if its options are the reason.

        Raises:
            TokenizerMismatchError: the drafter's graph is of another tokenizer.
            SpeculantError: the session can't be opened, and the client is strict.
        """
        return blocking(partial(self.submit_open, session_id, options), self.open_deadline_s)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline; never raises."""
        return blocking(partial(self.submit, steps), self.deadline_s)

    def submit_open(
        self, session_id: int, options: SessionOptions | None, finished: Callable[[], None]
    ) -> Callable[[], str | None]:
        """Do the first half of :meth:`open`, which waits for nothing.

        Args:
            session_id: the caller's id.
            options: what this session wants besides the client's settings.
            finished: called once, by any thread, when there is nothing more to wait for.

        Returns:
            The second half, which waits for nothing either: to be called after that, or when time is up.
        """
        outcome = self._do(self._core.open, session_id, time.monotonic(), finished, options)
        if not isinstance(outcome, Opening):
            finished()
        return partial(self._end_open, outcome, options)

    def submit(self, steps: Sequence[SequenceStep], finished: Callable[[], None]) -> Callable[[], list[Draft]]:
        """Do the first half of :meth:`draft`; see :meth:`submit_open`."""
        batch = self._guarded(self._core.begin, steps, time.monotonic(), finished) if steps else None
        if batch is None:
            finished()
        return partial(self._end, steps, batch)

    def _end_open(self, outcome: Opening | SpeculantError | None, options: SessionOptions | None) -> str | None:
        error = self._do(self._core.record_open, outcome, time.monotonic()) if isinstance(outcome, Opening) else outcome
        if error is not None and (self._strict or isinstance(error, TokenizerMismatchError)):
            raise error
        if options is not None and options.graph and isinstance(error, UnknownGraphError):
            return f"there were no drafts, as the drafter serves no graph '{options.graph}'; name one that it serves"
        return None

    def _end(self, steps: Sequence[SequenceStep], batch: InFlightBatch | None) -> list[Draft]:
        drafts = self._guarded(self._core.end, batch, time.monotonic()) if batch is not None else None
        return [EMPTY_DRAFT] * len(steps) if drafts is None else drafts

    def probe(self) -> None:
        """Ask a sidecar that is paused whether it is back, if it is time to; a step does it by itself."""
        if self.is_paused:
            self._do(self._core.probe, time.monotonic())

    def observe(self, report: PassReport) -> float:
        """Do nothing: drafts take little time."""
        return 0.0

    def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        self._do(self._core.finish, session_id)

    def close(self) -> None:
        """End all sessions, the stream and the connection; waits for the drafter no longer than for an opening."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline_s = time.monotonic() + self._open_call_s
        stream = self._stream
        self._do(self._core.close)
        for call in list(self._calls):
            try:
                call.exception(timeout=max(deadline_s - time.monotonic(), 0.0))
            except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
                call.cancel()
        if stream is not None:
            stream.join(min(max(deadline_s - time.monotonic(), 0.0), _JOIN_TIMEOUT_S))
        self._channel.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # --- what the core wants done

    def _do(self, event: Callable[..., _T], *arguments: object) -> _T:
        """Pass to the core what happened, and do what it requests."""
        with self._lock:
            result = event(*arguments)
            work = self._take_work()
        for item in work:
            item()
        return result

    def _guarded(self, event: Callable[..., _T], *arguments: object) -> _T | None:
        """Do the same; None after an error of our own, as not even that may stop the decoding."""
        try:
            return self._do(event, *arguments)
        except Exception as error:
            self._do(self._core.record_defect, error)
            return None

    def _take_work(self) -> list[Callable[[], object]]:
        """Send what is to be sent; return what is to be done without the lock."""
        work: list[Callable[[], object]] = []
        for action in self._core.take_actions():
            match action:
                case Send(payload):
                    if self._stream is None:
                        self._stream = self._new_stream()
                        work.append(self._stream.start)
                        if isinstance(self._stream, SocketStream) and self._num_streams > 1:
                            work.append(self._channel.close)  # it may be waiting before it tries again
                            self._connect()
                    self._stream.send(payload)
                case DropStream():
                    if self._stream is not None:
                        work.append(self._stream.close)
                        self._stream = None
                case OpenSession(opening):
                    work.append(partial(self._start_opening, opening))
                case CloseSession(wire_id, tenant):
                    work.append(partial(self._start_closing, wire_id, tenant))
                case Report(level, text):
                    work.append(partial(logger.log, level, "{}", text))
        return work

    def _connect(self) -> None:
        self._channel = self._endpoint.connect()
        self._stub = DrafterServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def _new_stream(self) -> GrpcStream | SocketStream:
        def note(event: Callable[..., None], what: bytes | SpeculantError) -> None:
            if self._stream is stream:  # it may have been dropped meanwhile
                event(what, time.monotonic())

        answered, ended = partial(self._do, note, self._core.answered), partial(self._do, note, self._core.stream_ended)
        stream: GrpcStream | SocketStream | None = None
        self._num_streams += 1
        if self._socket_path is not None:
            with suppress(OSError):  # a server that wants keys, an older one, or none
                stream = SocketStream(self._socket_path, answered, ended)
        if stream is None:
            method = self._channel.stream_stream(_STREAM_METHOD, None, None)
            stream = GrpcStream(partial(method, metadata=self._metadata), answered, ended)
        return stream

    def _start_opening(self, opening: Opening) -> None:
        def note(call: Any) -> None:
            try:
                outcome: OpenResponse | SpeculantError = convert.decode_open_response(call.result())
            except grpc.RpcError:
                outcome = error_of(call)
            except Exception as error:
                outcome = DrafterUnavailableError(f"the opening failed: {error!r}")
            self._do(self._core.opened, opening, outcome, time.monotonic())

        try:
            call = self._start_call("OpenSession", convert.encode_open_request(opening.request))
        except ValueError as error:  # the channel is closed
            failure = DrafterUnavailableError(f"the opening failed: {error}")
            self._do(self._core.opened, opening, failure, time.monotonic())
        else:
            call.add_done_callback(note)

    def _start_closing(self, wire_id: int, tenant: str) -> None:
        with suppress(ValueError):  # the channel is closed, and the drafter drops the session itself, in time
            self._start_call("CloseSession", pb.CloseSessionRequest(session_id=wire_id, tenant=tenant))

    def _start_call(self, method: str, request: object) -> Any:
        call = getattr(self._stub, method).future(request, timeout=self._open_call_s, metadata=self._metadata)
        self._calls.add(call)  # one that is not held is cancelled
        call.add_done_callback(self._calls.discard)
        return call


def blocking(submit: Callable[[Callable[[], None]], Callable[[], _T]], timeout_s: float) -> _T:
    """Wait between the two halves of what a client does; see :meth:`DrafterClient.submit_open`."""
    deadline_s = time.monotonic() + timeout_s
    lock = threading.Lock()  # the quickest way to wake a thread
    lock.acquire()
    collect = submit(lock.release)
    lock.acquire(timeout=max(deadline_s - time.monotonic(), 0.0))
    return collect()
