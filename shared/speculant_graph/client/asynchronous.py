"""The asyncio client of drafter sidecars: streams and tasks round the core, all in one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio
from loguru import logger

from speculant_graph.client.actions import CloseSession, DropStream, OpenSession, Report, Send, StartProbing
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

_END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


class AsyncDrafterClient:
    """Drafts from sidecars, for many tasks of one event loop at a time. Belongs to the loop that first uses it.

    Example:
        >>> async with AsyncDrafterClient(config, tokenizer=None, draft=DraftConfig()) as client:
        ...     await client.open(1)
        ...     [draft] = await client.draft([SequenceStep(1, [17, 4, 9], node_budget=8)])
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
        """Make a client.

        Args:
            config: addresses, patience and credentials.
            tokenizer: the verifier's; None leaves the comparison out.
            draft: how to draft; what nobody has set is the sidecar's. The number of nodes comes with every step.
            strict: raise if a session can't be opened, instead of going on without drafts.
            wants_proposals: have the distributions q of sampling strategies sent.
            cost: what verifying costs, for drafts that end where more would not pay; None: nothing.
            clock: monotonic time in seconds.

        Raises:
            ConfigError: an address is malformed, credentials can't be used, or a setting is the sidecar's own.
        """
        self._config, self._strict, self._clock = config, strict, clock
        self._deadline_s, self._open_deadline_s = config.deadline_ms / 1e3, config.open_deadline_ms / 1e3
        self._core = make_core(config, tokenizer=tokenizer, draft=draft, wants_proposals=wants_proposals, cost=cost)
        self._endpoints = endpoints_of(config)
        self._metadata = [endpoint.metadata or None for endpoint in self._endpoints]
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: list[Any] = []
        self._streams: dict[int, tuple[int, _StepStream]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._prober: asyncio.Task[None] | None = None
        self._is_closed = False
        self._has_turned = False

    @property
    def state(self) -> DrafterState:
        """Whether the last step was answered."""
        return self._core.state

    @property
    def statistics(self) -> DrafterStatistics:
        """Counts since the drafter was made."""
        return self._core.statistics()

    async def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
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
        started_s = self._clock()
        opened = asyncio.get_running_loop().create_future()
        opening = self._core.open(session_id, started_s, lambda: _resolve(opened), options)
        self._work()
        error: SpeculantError | None = None
        if isinstance(opening, Opening):
            await _at_most(opened, self._open_deadline_s + OPEN_GRACE_S)
            error = self._core.note_open(opening, started_s, self._clock())
            self._work()
        elif opening is not None:
            error = opening
        if error is not None and (self._strict or isinstance(error, TokenizerMismatchError)):
            raise error
        return problem_of(options, error)

    async def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft for a batch within the deadline; never raises, except if it is cancelled itself."""
        if not steps:
            return []
        try:
            return await self._draft(steps)
        except Exception as error:
            # Not even an error of our own may stop the decoding.
            self._core.note_defect(error)
            self._work()
            return [EMPTY_DRAFT] * len(steps)

    async def finish(self, session_id: int) -> None:
        """End a session without waiting for the drafter."""
        self._core.finish(session_id)
        self._work()

    async def close(self) -> None:
        """End all sessions, the streams and the connections; waits for drafters no longer than for an opening."""
        if self._is_closed:
            return
        self._is_closed = True
        self._core.close()
        self._work()
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=self._open_deadline_s)
        rest = [*self._calls, *([self._prober] if self._prober is not None else [])]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for channel in self._channels:
            await channel.close(None)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def _draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        if self._core.skips():
            await self._let_loop_turn()
            return [EMPTY_DRAFT] * len(steps)
        started_s = self._clock()
        settled = asyncio.get_running_loop().create_future()
        round_ = self._core.begin(steps, started_s, lambda: _resolve(settled))
        try:
            self._work()
            await _at_most(settled, started_s + self._deadline_s - self._clock())
        finally:  # also when the caller is cancelled
            drafts = self._core.end(round_, self._clock())
            self._work()
        return drafts

    async def _let_loop_turn(self) -> None:
        """Let the loop turn if it has not since the last step that was skipped.

        A caller that waits for nothing else must not keep the probes from running, and one that waits for its model
        shall not wait for them as well.
        """
        if not self._has_turned:
            await asyncio.sleep(0)
        self._has_turned = False
        asyncio.get_running_loop().call_soon(self._note_turn)

    def _note_turn(self) -> None:
        self._has_turned = True

    # --- what the core wants done

    def _work(self) -> None:
        for action in self._core.take_actions():
            match action:
                case Send(replica, number, payload):
                    current = self._streams.get(replica)
                    if current is None or current[0] != number:
                        current = self._streams[replica] = number, self._new_stream(replica, number)
                    current[1].send(payload)
                case DropStream(replica, number):
                    if replica in self._streams and self._streams[replica][0] == number:
                        self._hold(*self._streams.pop(replica)[1].close())
                case OpenSession(opening):
                    self._keep(self._open_session(opening))
                case CloseSession(replica, wire_id, tenant):
                    self._keep(self._close_session(replica, wire_id, tenant))
                case StartProbing():
                    if self._prober is None or self._prober.done():
                        self._prober = asyncio.get_running_loop().create_task(self._probe())
                case Report(level, text):
                    logger.log(level, "{}", text)

    def _keep(self, call: Coroutine[Any, Any, None]) -> None:
        self._hold(asyncio.get_running_loop().create_task(call))

    def _hold(self, *tasks: asyncio.Task[None]) -> None:
        """Remember tasks until they are done; the loop itself would forget them."""
        for task in tasks:
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    def _connect(self) -> None:
        # A channel belongs to the running loop, so it can't be made before there is one.
        if not self._channels:
            self._channels = [endpoint.connect_async() for endpoint in self._endpoints]
            self._stubs = [DrafterServiceStub(channel) for channel in self._channels]  # type: ignore[no-untyped-call]

    def _new_stream(self, replica: int, number: int) -> _StepStream:
        self._connect()

        def on_answer(payload: bytes) -> None:
            self._core.answered(replica, number, payload, self._clock())
            self._work()

        def on_end(error: SpeculantError) -> None:
            self._core.stream_ended(replica, number, error, self._clock())
            self._work()

        method: Any = self._channels[replica].stream_stream(STREAM_METHOD, None, None)
        return _StepStream(method(metadata=self._metadata[replica]), on_answer, on_end)

    async def _open_session(self, opening: Opening) -> None:
        self._connect()
        replica = opening.replica
        try:
            message = await self._stubs[replica].OpenSession(
                convert.encode_open_request(opening.request),
                timeout=self._open_deadline_s,
                metadata=self._metadata[replica],
            )
            outcome: OpenAnswer | SpeculantError = convert.decode_open_answer(message)
        except grpc.aio.AioRpcError as error:
            outcome = error_of(error.code(), error.details(), error.trailing_metadata())
        except Exception as error:
            outcome = DrafterUnavailableError(f"the opening failed: {error!r}")
        self._core.opened(opening, outcome, self._clock())
        self._work()

    async def _close_session(self, replica: int, wire_id: int, tenant: str) -> None:
        self._connect()
        request = pb.CloseSessionRequest(session_id=wire_id, tenant=tenant)
        try:
            await self._stubs[replica].CloseSession(
                request, timeout=self._open_deadline_s, metadata=self._metadata[replica]
            )
        except grpc.RpcError:
            return  # the drafter drops it itself, in time

    # --- probing

    async def _probe(self) -> None:
        """Ask the replicas that are down again and again, until there are none."""
        while replicas := self._core.to_probe():
            await asyncio.gather(*map(self._probe_one, replicas))
            await asyncio.sleep(self._config.probe_interval_ms / 1e3)

    async def _probe_one(self, replica: int) -> None:
        self._connect()
        method: Any = self._channels[replica].unary_unary(PROBE_METHOD, None, None)
        try:
            await method(PROBE, timeout=PROBE_TIMEOUT_S, metadata=self._metadata[replica])
        except grpc.aio.AioRpcError as error:
            failure: SpeculantError | None = error_of(error.code(), error.details(), None)
        else:
            failure = None
        self._core.probed(replica, failure)
        self._work()


class _StepStream:
    """A StreamDraft call, of bytes, with a task that writes and one that reads.

    A read that is given up would cancel the whole call, so nobody who has a deadline reads.
    """

    def __init__(self, call: Any, on_answer: Callable[[bytes], None], on_end: Callable[[SpeculantError], None]) -> None:
        self._call, self._on_answer, self._on_end = call, on_answer, on_end
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._writer = loop.create_task(self._write())
        self._reader = loop.create_task(self._read())

    def send(self, payload: bytes) -> None:
        """Hand over a message."""
        self._requests.put_nowait(payload)

    def close(self) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        """Cancel the call; return the tasks that end with it."""
        self._writer.cancel()
        self._reader.cancel()
        self._call.cancel()
        return self._writer, self._reader

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._requests.get())
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reading task knows why

    async def _read(self) -> None:
        error: SpeculantError = DrafterUnavailableError("the drafter ended the stream")
        try:
            while (payload := await self._call.read()) is not _END_OF_STREAM:
                self._on_answer(payload)
        except grpc.aio.AioRpcError as failure:
            error = error_of(failure.code(), failure.details(), failure.trailing_metadata())
        except Exception as failure:  # an answer that breaks our own code
            error = DrafterUnavailableError(f"the stream failed: {failure!r}")
        self._on_end(error)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _at_most(future: asyncio.Future[None], timeout_s: float) -> None:
    """Wait for a future, but not for ever; cheaper than a task of asyncio's own."""
    timer = asyncio.get_running_loop().call_later(max(timeout_s, 0.0), _resolve, future)
    try:
        await future
    finally:
        timer.cancel()
