"""What both clients of drafter sidecars do: a lock, streams and threads round the core, which decides everything.

Sending is handing bytes to a queue, which happens under the lock, so that messages leave in the order of their numbers;
all that may take longer happens after it. The two clients differ in how they wait for what is begun here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from loguru import logger

from speculant_graph.client.actions import CloseSession, DropStream, OpenSession, Report, Send, StartProbing
from speculant_graph.client.batches import InFlightBatch
from speculant_graph.client.sessions import Opening, problem_of
from speculant_graph.client.setup import endpoints_of, error_of, make_core
from speculant_graph.client.stream import StepStream
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

OPEN_GRACE_S = 0.05
"""How much longer than a call of OpenSession its outcome is waited for, as it has the reason."""
_STREAM_METHOD = "/speculant_graph.rpc.v1.DrafterService/StreamDraft"
"""Called without serializers: its bytes are made and read by our own codec."""
_PROBE_TIMEOUT_S = 0.1
_OPEN_S = 0.5
"""Least time that a session has to be opened in."""
_JOIN_TIMEOUT_S = 1.0
_T = TypeVar("_T")
_FORKED = "this client was made before the process forked; make one in every process"


class SidecarClient:
    """What the blocking client and the asyncio one have in common. May be called by many threads."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        tokenizer: Fingerprint | None,
        draft: DraftConfig,
        strict: bool = False,
        wants_proposals: bool = True,
        cost: CostCurve | None = None,
    ) -> None:
        """Make a client; it connects when the first session is opened.

        Args:
            config: addresses, patience and credentials.
            tokenizer: the verifier's; None leaves the comparison out.
            draft: how to draft; what is not set is the sidecar's. The number of nodes comes with every step.
            strict: raise if a session can't be opened, instead of going on without drafts.
            wants_proposals: have the distributions q of sampling strategies sent; a verifier whose rule needs none
                saves the sidecar most of its work.
            cost: what verifying costs, for drafts that end where more would not pay; None: nothing.

        Raises:
            ConfigError: an address is malformed, credentials can't be used, or a setting is the sidecar's own.
        """
        self._strict = strict
        self._deadline_s = config.deadline_ms / 1e3
        self._open_deadline_s = max(_OPEN_S, self._deadline_s)
        self._probe_interval_s = config.probe_interval_ms / 1e3
        self._core = make_core(config, tokenizer=tokenizer, draft=draft, wants_proposals=wants_proposals, cost=cost)
        endpoints = endpoints_of(config)
        self._metadata = [endpoint.metadata or None for endpoint in endpoints]
        self._channels = [endpoint.connect() for endpoint in endpoints]
        self._stubs = [DrafterServiceStub(channel) for channel in self._channels]  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._streams: dict[int, StepStream] = {}
        self._calls: set[Any] = set()
        self._prober: threading.Thread | None = None
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

    # --- what is waited for between its beginning and its end

    def _begin_open(
        self, session_id: int, options: SessionOptions | None, callback: Callable[[], None]
    ) -> Opening | SpeculantError | None:
        """Begin to open a session; see :meth:`~speculant_graph.client.core.ClientCore.open`."""
        if self._is_forked():
            return DrafterUnavailableError(_FORKED)
        return self._do(self._core.open, session_id, time.monotonic(), callback, options)

    def _end_open(self, opening: Opening | SpeculantError | None, options: SessionOptions | None) -> str | None:
        """Return why a session gets no drafts, if its options are the reason.

        Args:
            opening: what :meth:`_begin_open` returned.
            options: of the session.

        Raises:
            TokenizerMismatchError: the drafter's graph is of another tokenizer.
            SpeculantError: the session can't be opened, and the client is strict.
        """
        error = self._do(self._core.note_open, opening, time.monotonic()) if isinstance(opening, Opening) else opening
        if error is not None and (self._strict or isinstance(error, TokenizerMismatchError)):
            raise error
        return problem_of(options, error)

    def _begin(self, steps: Sequence[SequenceStep], finished: Callable[[], None]) -> InFlightBatch | None:
        """Begin a step of a batch; None if no replica can be asked. Never raises."""
        if not steps or self._is_forked():
            return None
        return self._guarded(self._core.begin, steps, time.monotonic(), finished)

    def _remaining_s(self, batch: InFlightBatch) -> float:
        """Return how long a batch may still be waited for."""
        return max(batch.started_s + self._deadline_s - time.monotonic(), 0.0)

    def _end(self, batch: InFlightBatch) -> list[Draft]:
        """End a step, complete or not; return its drafts. Never raises."""
        drafts = self._guarded(self._core.end, batch, time.monotonic())
        return [EMPTY_DRAFT] * len(batch.steps) if drafts is None else drafts

    def _finish(self, session_id: int) -> None:
        if not self._is_forked():
            self._do(self._core.finish, session_id)

    def _close(self) -> None:
        if self._is_closed.is_set() or self._is_forked():
            return
        deadline_s = time.monotonic() + self._open_deadline_s
        self._is_closed.set()
        with self._lock:
            streams = list(self._streams.values())
        self._do(self._core.close)
        for call in list(self._calls):
            try:
                call.exception(timeout=max(deadline_s - time.monotonic(), 0.0))
            except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
                call.cancel()
        for stream in streams:
            stream.join(min(max(deadline_s - time.monotonic(), 0.0), _JOIN_TIMEOUT_S))
        for channel in self._channels:
            channel.close()

    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

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
            self._do(self._core.note_defect, error)
            return None

    def _take_work(self) -> list[Callable[[], object]]:
        """Send what is to be sent; return what is to be done without the lock."""
        work: list[Callable[[], object]] = []
        for action in self._core.take_actions():
            match action:
                case Send(replica, payload):
                    if replica not in self._streams:
                        self._streams[replica] = self._new_stream(replica)
                        work.append(self._streams[replica].start)
                    self._streams[replica].send(payload)
                case DropStream(replica):
                    if replica in self._streams:
                        work.append(self._streams.pop(replica).close)
                case OpenSession(opening):
                    work.append(partial(self._start_opening, opening))
                case CloseSession(replica, wire_id, tenant):
                    work.append(partial(self._start_closing, replica, wire_id, tenant))
                case StartProbing():
                    work.append(self._start_probing)
                case Report(level, text):
                    work.append(partial(logger.log, level, "{}", text))
        return work

    def _new_stream(self, replica: int) -> StepStream:
        def note(event: Callable[..., None], what: bytes | SpeculantError) -> None:
            if self._streams.get(replica) is stream:  # it may have been dropped meanwhile
                event(replica, what, time.monotonic())

        method = self._channels[replica].stream_stream(_STREAM_METHOD, None, None)
        stream = StepStream(
            partial(method, metadata=self._metadata[replica]),
            partial(self._do, note, self._core.answered),
            partial(self._do, note, self._core.stream_ended),
        )
        return stream

    def _start_opening(self, opening: Opening) -> None:
        def note(call: Any) -> None:
            try:
                outcome: OpenAnswer | SpeculantError = convert.decode_open_answer(call.result())
            except grpc.RpcError:
                outcome = error_of(call)
            except Exception as error:
                outcome = DrafterUnavailableError(f"the opening failed: {error!r}")
            self._do(self._core.opened, opening, outcome, time.monotonic())

        request = convert.encode_open_request(opening.request)
        try:
            call = self._start_call("OpenSession", opening.replica, request, self._open_deadline_s)
        except ValueError as error:  # the channel is closed
            failure = DrafterUnavailableError(f"the opening failed: {error}")
            self._do(self._core.opened, opening, failure, time.monotonic())
        else:
            call.add_done_callback(note)

    def _start_closing(self, replica: int, wire_id: int, tenant: str) -> None:
        request = pb.CloseSessionRequest(session_id=wire_id, tenant=tenant)
        with suppress(ValueError):  # the channel is closed, and the drafter drops the session itself, in time
            self._start_call("CloseSession", replica, request, self._open_deadline_s)

    def _start_call(self, method: str, replica: int, request: object, timeout_s: float) -> Any:
        stub, metadata = self._stubs[replica], self._metadata[replica]
        call = getattr(stub, method).future(request, timeout=timeout_s, metadata=metadata)
        self._calls.add(call)  # one that is not held is cancelled
        call.add_done_callback(self._calls.discard)
        return call

    # --- probing

    def _start_probing(self) -> None:
        with self._lock:
            if self._prober is not None or self._is_closed.is_set():
                return
            self._prober = threading.Thread(target=self._probe, name="speculant-draft-prober", daemon=True)
        self._prober.start()

    def _probe(self) -> None:
        """Probe the replicas that are down again and again, until there are none."""
        while True:
            with self._lock:
                replicas = self._core.to_probe()
                if not replicas:
                    self._prober = None
                    return
            try:
                calls = [
                    (replica, self._start_call("Draft", replica, pb.DraftRequest(), _PROBE_TIMEOUT_S))
                    for replica in replicas
                ]
            except ValueError:  # the channels are closed
                return
            for replica, call in calls:
                failed = call.code() is not grpc.StatusCode.OK  # waits
                self._do(self._core.probed, replica, error_of(call) if failed else None)
            if self._is_closed.wait(self._probe_interval_s):
                return
