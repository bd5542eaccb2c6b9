"""Shares one engine among many callers: threads that iterate, and tasks of an event loop.

A thread that waits for an output while no step is running becomes the step owner, and does the next step for all
callers. A single caller therefore decodes in its own thread, without waking another thread. Tasks of an event loop
can't do steps, so a worker thread does them while any task waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeVar

from speculant_graph.errors import GenerationError
from speculant_verifier.engine.engine import Engine
from speculant_verifier.engine.sequence import ActiveSequence, Request, StepOutput

_Item = StepOutput | Exception
_Event = TypeVar("_Event")

_CLOSED = "the decoder was closed; make a new one"
_INTERRUPTED = "the thread that ran this step for all calls was interrupted; try again"


class _OutputQueue:
    """Queue of one call's outputs that the caller has not read yet."""

    def __init__(self, requests: Sequence[Request], put: Callable[[_Item], object], *, is_of_task: bool) -> None:
        self.requests = requests
        self.put = put
        self.is_of_task = is_of_task
        self.sequences: list[ActiveSequence] = []
        self.is_cancelled = False


class Runner:
    """Shares an engine. This class is safe to use from any thread."""

    def __init__(self, engine: Engine) -> None:
        """Take over an engine, which no other code may use from now on."""
        self._engine = engine
        self._changed = threading.Condition()
        self._step_owner: object = None  # the caller, or the runner for its worker thread
        self._arriving: list[_OutputQueue] = []
        self._open: list[_OutputQueue] = []
        self._owners: dict[int, _OutputQueue] = {}
        self._worker: threading.Thread | None = None
        self._is_closed = False

    @property
    def num_sequences(self) -> int:
        """Number of unfinished requests of all callers."""
        with self._changed:
            return len(self._owners) + sum(len(each.requests) for each in self._arriving if not each.is_cancelled)

    def stream(self, requests: Sequence[Request]) -> Iterator[StepOutput]:
        """Decode requests together with other callers' requests, and yield their outputs.

        Closing the iterator cancels the requests.
        """
        read: deque[_Item] = deque()
        queue = _OutputQueue(requests, read.append, is_of_task=False)
        self._submit(queue)
        num_open = len(requests)
        try:
            while num_open:
                if not read:
                    self._step_or_wait(queue, read)
                    continue
                output = _checked(read.popleft())
                num_open -= output.finish_reason is not None
                yield output
        finally:
            self._withdraw(queue)

    async def astream(
        self,
        requests: Sequence[Request],
        event: Callable[[StepOutput], _Event],
        *,
        pause_s: float | None = None,
        ended: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[_Event | None, None]:
        """Decode requests like :meth:`stream`, for a task of an event loop; cancelling the task cancels the requests.

        Args:
            requests: requests to decode.
            event: converts an output to the event that is yielded.
            pause_s: seconds without an output after which None is yielded; None for never.
            ended: called in the event loop when the engine finishes a request, even if its outputs are unread.
        """
        queue, read = _queue_of_task(requests, ended)
        self._submit(queue)
        num_open = len(requests)
        try:
            while num_open:
                try:
                    async with asyncio.timeout(pause_s if read.empty() else None):
                        item = await read.get()
                except TimeoutError:
                    yield None
                    continue
                output = _checked(item)
                num_open -= output.finish_reason is not None
                yield event(output)
        finally:
            self._withdraw(queue)

    def close(self) -> None:
        """Cancel all requests after the current step; waiting calls and later calls get an error."""
        with self._changed:
            self._is_closed = True
            self._fail_all(GenerationError(_CLOSED))  # first: a step owner would continue while it reads
            while self._step_owner is not None:
                self._changed.wait()
            self._apply_changes()
            self._engine.close()
            self._changed.notify_all()

    def _submit(self, queue: _OutputQueue) -> None:
        with self._changed:
            if self._is_closed:
                raise GenerationError(_CLOSED)
            self._arriving.append(queue)
            if queue.is_of_task and (self._worker is None or not self._worker.is_alive()):
                self._worker = threading.Thread(target=self._work, name="speculant-engine", daemon=True)
                self._worker.start()
            self._changed.notify_all()

    def _withdraw(self, queue: _OutputQueue) -> None:
        """Cancel a call's unfinished requests, now or after the current step."""
        with self._changed:
            queue.is_cancelled = True
            if self._step_owner is queue:  # Ctrl-C came before the step began
                self._step_owner = None
            if self._step_owner is None:
                self._apply_changes()
            self._changed.notify_all()

    def _step_or_wait(self, queue: _OutputQueue, read: deque[_Item]) -> None:
        with self._changed:
            while not read and (self._step_owner is not None or not self._has_work):
                self._changed.wait()
            if read:
                return
            self._step_owner = queue
        self._step()

    @property
    def _has_work(self) -> bool:
        """Whether the next step has any work to do."""
        return bool(self._arriving) or any(each.is_cancelled for each in self._open) or self._engine.has_work

    @property
    def _has_tasks(self) -> bool:
        """Whether any event-loop task waits or may wait; a slow reader whose outputs are all queued does not count."""
        return any(queue.is_of_task for queue in (*self._owners.values(), *self._arriving))

    def _work(self) -> None:
        """Do decoding steps while any event-loop task waits."""
        while True:
            with self._changed:
                while self._step_owner is not None or (self._has_tasks and not self._has_work):
                    self._changed.wait()
                if not self._has_tasks:
                    self._worker = None
                    return
                self._step_owner = self
            try:
                self._step()
            except BaseException:
                self._worker = None  # so that the next task starts another worker
                raise

    def _step(self) -> None:
        """Do one step and dispatch its outputs; an error of the engine's step goes to all callers."""
        try:
            with self._changed:
                self._apply_changes()
            outputs = self._engine.step()
            with self._changed:
                for output in outputs:
                    self._dispatch(output)
        except BaseException as error:
            with self._changed:
                self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._changed:
                self._step_owner = None
                self._changed.notify_all()

    def _apply_changes(self) -> None:
        """Start new calls and end cancelled calls; if there is a step owner, only the step owner may call this."""
        arriving, self._arriving = self._arriving, []
        for queue in arriving:
            if queue.is_cancelled:  # it never began
                continue
            self._open.append(queue)
            try:
                for request in queue.requests:
                    sequence = self._engine.add(request)
                    queue.sequences.append(sequence)
                    self._owners[id(sequence)] = queue
            except Exception as error:  # an error of one call must not reach the others
                queue.is_cancelled = True
                queue.put(error)
        cancelled = [each for each in self._open if each.is_cancelled]
        self._open = [each for each in self._open if not each.is_cancelled]
        for queue in cancelled:
            for sequence in queue.sequences:
                if self._owners.pop(id(sequence), None) is not None:
                    self._engine.cancel(sequence)

    def _dispatch(self, output: StepOutput) -> None:
        owner = self._owners.get(id(output.sequence))
        if owner is None:
            return
        if output.finish_reason is not None:
            del self._owners[id(output.sequence)]
        owner.put(output)

    def _fail(self, error: BaseException) -> None:
        # Ctrl-C and the like are meant for the thread that did the step.
        self._fail_all(error if isinstance(error, Exception) else GenerationError(_INTERRUPTED))
        self._apply_changes()

    def _fail_all(self, error: Exception) -> None:
        for queue in (*self._open, *self._arriving):
            queue.is_cancelled = True
            queue.put(error)


def _queue_of_task(
    requests: Sequence[Request], ended: Callable[[], object]
) -> tuple[_OutputQueue, asyncio.Queue[_Item]]:
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[_Item] = asyncio.Queue()

    def arrive(item: _Item) -> None:
        read.put_nowait(item)
        has_ended = isinstance(item, StepOutput) and item.finish_reason is not None
        if has_ended and not queue.is_cancelled:  # the caller has not left
            ended()

    def put(item: _Item) -> None:
        try:
            loop.call_soon_threadsafe(arrive, item)
        except RuntimeError:  # the loop is closed, so there is no reader any more
            queue.is_cancelled = True

    queue = _OutputQueue(requests, put, is_of_task=True)
    return queue, read


def _checked(item: _Item) -> StepOutput:
    if isinstance(item, Exception):
        raise item
    return item
