"""The client of a drafter sidecar: it adds a lock, a stream and a reading thread to :class:`ClientCore`.

Messages are queued under the lock, so they are sent in the order of their step ids. Slower actions, such as starting a
stream, run after the lock is released.
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
"""gRPC method that is called without serializers, because our own codec reads and writes the bytes."""
_OPEN_S = 0.5
"""Minimum timeout of OpenSession in seconds."""
_OPEN_GRACE_S = 0.05
"""Extra seconds to wait for OpenSession's outcome after its timeout; the outcome explains the failure."""
_JOIN_TIMEOUT_S = 1.0
_T = TypeVar("_T")


class DrafterClient:
    """Requests drafts from a sidecar. The client is thread-safe, but unusable in processes that are forked later.

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
        """Make a client; it connects when it opens the first session.

        Args:
            config: address, deadline and credentials.
            tokenizer: fingerprint of the verifier's tokenizer; None skips the comparison.
            draft: draft settings; the sidecar's values apply where a setting is missing. Each step sets its own maximum
                number of draft nodes.
            strict: raise if a session can't be opened, instead of continuing without drafts.
            wants_proposals: request the distributions q of sampling strategies. If the verification rule does not need
                q, the value False saves the sidecar most of its work.
            host_name: the expected host name in the sidecar's certificate; empty: the host of the address.

        Raises:
            ConfigError: the address is malformed, credentials can't be used, or ``draft`` has a setting that only the
                sidecar can set.
        """
        from speculant_graph.draft.options import options_of  # the caller's DraftConfig has loaded its dependencies

        self._strict = strict
        self.capabilities = STRATEGIES[draft.strategy]
        """Capabilities of the drafting strategy."""
        self.deadline_s = config.deadline_ms / 1e3
        """Maximum time to wait for the drafts of a step, in seconds."""
        self._open_call_s = max(_OPEN_S, self.deadline_s)
        self.open_deadline_s = self._open_call_s + _OPEN_GRACE_S
        """Maximum time to wait until a session is open, in seconds."""
        # The sidecar chooses missing options, except the strategy, because drafts name it.
        options = replace(options_of(draft), strategy=draft.strategy, omit_proposals=not wants_proposals)
        opening = OpenRequest(
            session_id=1,
            tokenizer_sha256=tokenizer.sha256 if tokenizer is not None else "",
            tenant=config.tenant,
            graph=config.graph,
            learn=config.learn,
        )
        convert.encode_open_request(opening)  # reports mistakes now, not in the first session
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
        """Whether the drafter answered the last step."""
        return self._core.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts of steps, drafts and failures since the client was made."""
        with self._lock:
            return self._core.statistics()

    @property
    def is_paused(self) -> bool:
        """Whether requests to the sidecar are suspended because it failed."""
        return self._core.breaker.is_down

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Open a session; if the drafter does not answer, the session's first steps try again.

        Args:
            session_id: the caller's id.
            options: options of this session; they override the client's settings.

        Returns:
            A message for the user if the session's options prevent drafts, otherwise None.

        Raises:
            TokenizerMismatchError: the drafter's graph was built with another tokenizer.
            SpeculantError: the session can't be opened, and the client is strict.
        """
        return blocking(partial(self.submit_open, session_id, options), self.open_deadline_s)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Return drafts for a batch within the deadline; never raise an error."""
        return blocking(partial(self.submit, steps), self.deadline_s)

    def submit_open(
        self, session_id: int, options: SessionOptions | None, finished: Callable[[], None]
    ) -> Callable[[], str | None]:
        """Start opening a session as in :meth:`open`, but do not wait for the outcome.

        Args:
            session_id: the caller's id.
            options: options of this session; they override the client's settings.
            finished: called once, by any thread, when the outcome is known.

        Returns:
            A function that immediately returns the result of :meth:`open`. The function must be called after
            ``finished`` was called, or at the deadline.
        """
        outcome = self._do(self._core.open, session_id, time.monotonic(), finished, options)
        if not isinstance(outcome, Opening):
            finished()
        return partial(self._end_open, outcome, options)

    def submit(self, steps: Sequence[SequenceStep], finished: Callable[[], None]) -> Callable[[], list[Draft]]:
        """Start drafting as in :meth:`draft`, but do not wait for the drafts; see :meth:`submit_open`."""
        batch = self._guarded(self._core.begin, steps, time.monotonic(), finished) if steps else None
        if batch is None:
            finished()
        return partial(self._end, steps, batch)

    def _end_open(self, outcome: Opening | SpeculantError | None, options: SessionOptions | None) -> str | None:
        error = self._do(self._core.record_open, outcome, time.monotonic()) if isinstance(outcome, Opening) else outcome
        if error is not None and (self._strict or isinstance(error, TokenizerMismatchError)):
            raise error
        if options is not None and options.graph and isinstance(error, UnknownGraphError):
            return f"no drafts, because the drafter serves no graph '{options.graph}'; name one that it serves"
        return None

    def _end(self, steps: Sequence[SequenceStep], batch: InFlightBatch | None) -> list[Draft]:
        drafts = self._guarded(self._core.end, batch, time.monotonic()) if batch is not None else None
        return [EMPTY_DRAFT] * len(steps) if drafts is None else drafts

    def probe(self) -> None:
        """Probe a paused sidecar if a probe is due; steps also send such probes."""
        if self.is_paused:
            self._do(self._core.probe, time.monotonic())

    def observe(self, report: PassReport) -> float:
        """Ignore the pass report, and return a drafting time of 0 s, because drafting takes little time."""
        return 0.0

    def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        self._do(self._core.finish, session_id)

    def close(self) -> None:
        """Close all sessions and the connection. Closing waits at most as long as opening a session may take."""
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
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self.close()

    # --- actions of the core

    def _do(self, event: Callable[..., _T], *arguments: object) -> _T:
        """Pass an event to the core, and run the actions that it returns."""
        with self._lock:
            result = event(*arguments)
            work = self._take_work()
        for item in work:
            item()
        return result

    def _guarded(self, event: Callable[..., _T], *arguments: object) -> _T | None:
        """Call :meth:`_do`, but return None after an unexpected error, because a client bug must not stop decoding."""
        try:
            return self._do(event, *arguments)
        except Exception as error:
            self._do(self._core.record_defect, error)
            return None

    def _take_work(self) -> list[Callable[[], object]]:
        """Send the core's messages; return the core's other actions, which must run without the lock."""
        work: list[Callable[[], object]] = []
        for action in self._core.take_actions():
            match action:
                case Send(payload):
                    if self._stream is None:
                        self._stream = self._new_stream()
                        work.append(self._stream.start)
                        if isinstance(self._stream, SocketStream) and self._num_streams > 1:
                            work.append(self._channel.close)  # the old channel may be in its reconnect backoff
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
            if self._stream is stream:  # ignore the events of a dropped stream
                event(what, time.monotonic())

        answered, ended = partial(self._do, note, self._core.answered), partial(self._do, note, self._core.stream_ended)
        stream: GrpcStream | SocketStream | None = None
        self._num_streams += 1
        if self._socket_path is not None:
            with suppress(OSError):  # the server requires keys, is too old, or does not run
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
                outcome = DrafterUnavailableError(f"the session was not opened: {error!r}")
            self._do(self._core.opened, opening, outcome, time.monotonic())

        try:
            call = self._start_call("OpenSession", convert.encode_open_request(opening.request))
        except ValueError as error:  # the channel is closed
            failure = DrafterUnavailableError(f"the session was not opened: {error}")
            self._do(self._core.opened, opening, failure, time.monotonic())
        else:
            call.add_done_callback(note)

    def _start_closing(self, wire_id: int, tenant: str) -> None:
        with suppress(ValueError):  # the channel is closed; the session expires in the drafter
            self._start_call("CloseSession", pb.CloseSessionRequest(session_id=wire_id, tenant=tenant))

    def _start_call(self, method: str, request: object) -> Any:
        call = getattr(self._stub, method).future(request, timeout=self._open_call_s, metadata=self._metadata)
        self._calls.add(call)  # gRPC cancels a call without references
        call.add_done_callback(self._calls.discard)
        return call


def blocking(submit: Callable[[Callable[[], None]], Callable[[], _T]], timeout_s: float) -> _T:
    """Submit a call, wait for its end or the timeout, and collect the result; see :meth:`DrafterClient.submit_open`."""
    deadline_s = time.monotonic() + timeout_s
    lock = threading.Lock()  # the quickest way to wake a thread
    lock.acquire()
    collect = submit(lock.release)
    lock.acquire(timeout=max(deadline_s - time.monotonic(), 0.0))
    return collect()
