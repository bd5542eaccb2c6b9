"""The blocking client of drafter sidecars: a lock, streams and threads round the core.

The core decides everything; what it wants done is done here. Sending is handing bytes to a queue, which happens under
the lock, so that messages leave in the order of their numbers; all that may take longer happens after it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc
from loguru import logger

from speculant_graph.client.actions import CloseSession, DropStream, OpenSession, Report, Send, StartProbing
from speculant_graph.client.connection import StepStream
from speculant_graph.client.sessions import Opening, problem_of
from speculant_graph.client.setup import (
    OPEN_GRACE_S,
    PROBE,
    PROBE_METHOD,
    PROBE_TIMEOUT_S,
    STREAM_METHOD,
    endpoints_of,
    error_of,
    make_core,
)
from speculant_graph.errors import DrafterUnavailableError, SpeculantError, TokenizerMismatchError
from speculant_graph.rpc import convert
from speculant_graph.rpc.messages import OpenAnswer
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
from speculant_graph.types import (
    EMPTY_DRAFT,
    Draft,
    DrafterState,
    DrafterStatistics,
    Fingerprint,
    SequenceStep,
    SessionOptions,
)

if TYPE_CHECKING:
    from speculant_graph.config import ClientConfig, DraftConfig
    from speculant_graph.draft.cost import CostCurve

_JOIN_TIMEOUT_S = 1.0
_FORKED = "this client was made before the process forked; make one in every process"

_Work = Callable[[], object]


class DrafterClient:
    """Drafts from sidecars. May be shared between threads, but not with a process that is forked later.

    In such a process it drafts nothing, as threads and connections are its parent's.

    Example:
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
        cost: CostCurve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a client; it connects when the first session is opened.

        Args:
            config: addresses, patience and credentials.
            tokenizer: the verifier's; None leaves the comparison out.
            draft: how to draft; what nobody has set is the sidecar's. The number of nodes comes with every step.
            strict: raise if a session can't be opened, instead of going on without drafts.
            wants_proposals: have the distributions q of sampling strategies sent; a verifier whose rule needs none
                saves the sidecar most of its work.
            cost: what verifying costs, for drafts that end where more would not pay; None: nothing.
            clock: monotonic time in seconds.

        Raises:
            ConfigError: an address is malformed, credentials can't be used, or a setting is the sidecar's own.
        """
        self._config, self._strict, self._clock = config, strict, clock
        self._deadline_s, self._open_deadline_s = config.deadline_ms / 1e3, config.open_deadline_ms / 1e3
        self._core = make_core(config, tokenizer=tokenizer, draft=draft, wants_proposals=wants_proposals, cost=cost)
        endpoints = endpoints_of(config)
        self._metadata = [endpoint.metadata or None for endpoint in endpoints]
        self._channels = [endpoint.connect() for endpoint in endpoints]
        self._stubs = [DrafterServiceStub(channel) for channel in self._channels]  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._streams: dict[int, tuple[int, StepStream]] = {}
        self._closing: set[Any] = set()
        self._prober: threading.Thread | None = None
        self._is_down = threading.Event()
        self._is_closed = threading.Event()
        self._pid = os.getpid()

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""
        return self._core.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""
        with self._lock:
            return self._core.statistics()

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        """Begin a session; if the drafter does not answer, its first steps try again.

        Args:
            session_id: the caller's id.
            options: what this session wants beside the client's settings.

        Returns:
            Why the session gets no drafts, if its options are the reason.

        Raises:
            TokenizerMismatchError: the drafter's graph is of another tokenizer.
            SpeculantError: the session can't be opened, and the client is strict.
        """
        if os.getpid() != self._pid:
            if self._strict:
                raise DrafterUnavailableError(_FORKED)
            return None
        started_s = self._clock()
        waiter = _closed_gate()
        with self._lock:
            opening = self._core.open(session_id, started_s, waiter.release, options)
            work = self._take_work()
        _do(work)
        error: SpeculantError | None = None
        if isinstance(opening, Opening):
            waiter.acquire(timeout=self._open_deadline_s + OPEN_GRACE_S)
            with self._lock:
                error = self._core.note_open(opening, started_s, self._clock())
                work = self._take_work()
            _do(work)
        elif opening is not None:
            error = opening
        if error is not None and (self._strict or isinstance(error, TokenizerMismatchError)):
            raise error
        return problem_of(options, error)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline; never raises."""
        if not steps:
            return []
        if os.getpid() != self._pid:
            return [EMPTY_DRAFT] * len(steps)
        try:
            return self._draft(steps)
        except Exception as error:
            # Not even an error of our own may stop the decoding.
            self._tell(self._core.note_defect, error)
            return [EMPTY_DRAFT] * len(steps)

    def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._core.finish(session_id)
            work = self._take_work()
        _do(work)

    def close(self) -> None:
        """End all sessions, the streams and the connections; waits for drafters no longer than for an opening."""
        if self._is_closed.is_set() or os.getpid() != self._pid:
            return
        deadline_s = self._clock() + self._open_deadline_s
        self._is_closed.set()
        self._is_down.set()
        with self._lock:
            streams = [stream for _, stream in self._streams.values()]
            self._core.close()
            work = self._take_work()
        _do(work)
        for call in list(self._closing):
            try:
                call.exception(timeout=max(deadline_s - self._clock(), 0.0))
            except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
                call.cancel()
        for stream in streams:
            stream.join(min(max(deadline_s - self._clock(), 0.0), _JOIN_TIMEOUT_S))
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        started_s = self._clock()
        waiter = _closed_gate()
        with self._lock:
            if self._core.skips():
                return [EMPTY_DRAFT] * len(steps)
            round_ = self._core.begin(steps, started_s, waiter.release)
            work = self._take_work()
        if work:
            _do(work)
        waiter.acquire(timeout=max(started_s + self._deadline_s - self._clock(), 0.0))
        with self._lock:
            drafts = self._core.end(round_, self._clock())
            work = self._take_work()
        if work:
            _do(work)
        return drafts

    # --- what the core wants done

    def _take_work(self) -> list[_Work]:
        """Send what is to be sent; return what is to be done without the lock."""
        work: list[_Work] = []
        for action in self._core.take_actions():
            match action:
                case Send(replica, number, payload):
                    current = self._streams.get(replica)
                    if current is None or current[0] != number:
                        current = self._streams[replica] = number, self._new_stream(replica, number)
                        work.append(current[1].start)
                    current[1].send(payload)
                case DropStream(replica, number):
                    if replica in self._streams and self._streams[replica][0] == number:
                        work.append(self._streams.pop(replica)[1].close)
                case OpenSession(opening):
                    work.append(partial(self._start_opening, opening))
                case CloseSession(replica, wire_id, tenant):
                    work.append(partial(self._start_closing, replica, wire_id, tenant))
                case StartProbing():
                    work.append(self._start_probing)
                case Report(level, text):
                    work.append(partial(logger.log, level, "{}", text))
        return work

    def _tell(self, event: Callable[..., None], *arguments: object) -> None:
        """Tell the core what happened, and do what it wants."""
        with self._lock:
            event(*arguments)
            work = self._take_work()
        if work:
            _do(work)

    def _new_stream(self, replica: int, number: int) -> StepStream:
        core, clock = self._core, self._clock
        method = self._channels[replica].stream_stream(STREAM_METHOD, None, None)
        return StepStream(
            partial(method, metadata=self._metadata[replica]),
            lambda payload: self._tell(core.answered, replica, number, payload, clock()),
            lambda error: self._tell(core.stream_ended, replica, number, error, clock()),
        )

    def _start_opening(self, opening: Opening) -> None:
        def note(call: Any) -> None:
            try:
                outcome: OpenAnswer | SpeculantError = convert.decode_open_answer(call.result())
            except grpc.RpcError:
                outcome = error_of(call.code(), call.details(), call.trailing_metadata())
            except Exception as error:
                outcome = DrafterUnavailableError(f"the opening failed: {error!r}")
            self._tell(self._core.opened, opening, outcome, self._clock())

        try:
            call = self._stubs[opening.replica].OpenSession.future(
                convert.encode_open_request(opening.request),
                timeout=self._open_deadline_s,
                metadata=self._metadata[opening.replica],
            )
        except ValueError as error:  # the channel is closed
            failure = DrafterUnavailableError(f"the opening failed: {error}")
            self._tell(self._core.opened, opening, failure, self._clock())
            return
        self._keep(call)
        call.add_done_callback(note)

    def _start_closing(self, replica: int, wire_id: int, tenant: str) -> None:
        request = pb.CloseSessionRequest(session_id=wire_id, tenant=tenant)
        try:
            call = self._stubs[replica].CloseSession.future(
                request, timeout=self._open_deadline_s, metadata=self._metadata[replica]
            )
        except ValueError:  # the channel is closed, and the drafter drops the session itself in time
            return
        self._keep(call)

    def _keep(self, call: Any) -> None:
        """Hold a call until it is done; one that nobody holds is cancelled."""
        self._closing.add(call)
        call.add_done_callback(self._closing.discard)

    # --- probing

    def _start_probing(self) -> None:
        self._is_down.set()
        with self._lock:
            if self._prober is not None or self._is_closed.is_set():
                return
            self._prober = threading.Thread(target=self._probe, name="speculant-draft-prober", daemon=True)
        self._prober.start()

    def _probe(self) -> None:
        """Ask the replicas that are down again and again; sleep while there are none."""
        while not self._is_closed.is_set():
            self._is_down.wait()
            self._is_down.clear()
            while replicas := self._core.to_probe():
                try:
                    for call in [self._start_probe(replica) for replica in replicas]:
                        call.exception()
                except (ValueError, grpc.FutureCancelledError):  # the channels are closed
                    return
                if self._is_closed.wait(self._config.probe_interval_ms / 1e3):
                    return

    def _start_probe(self, replica: int) -> Any:
        def note(call: Any) -> None:
            failed = call.code() is not grpc.StatusCode.OK
            error = error_of(call.code(), call.details(), None) if failed else None
            self._tell(self._core.probed, replica, error)

        method = self._channels[replica].unary_unary(PROBE_METHOD, None, None)
        call = method.future(PROBE, timeout=PROBE_TIMEOUT_S, metadata=self._metadata[replica])
        call.add_done_callback(note)
        return call


def _closed_gate() -> threading.Lock:
    """Return a lock to wait at, the quickest way to wake a thread."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def _do(work: list[_Work]) -> None:
    for item in work:
        item()
