"""One engine for many callers: threads that iterate, and tasks of an event loop.

Whoever waits for an emission and finds nobody at work does the next step, for everybody; so a single caller decodes in
its own thread, without another in between. Tasks of an event loop can't, so a thread works for as long as any of them
waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import replace

from speculant_graph.errors import GenerationError
from speculant_graph.types import Draft
from speculant_verifier.engine.engine import Engine
from speculant_verifier.engine.sequence import ActiveSequence, Emission, Request

_Item = Emission | Exception

_CLOSED = "the decoder was closed; make a new one"
_ENDED = "this sequence has ended; begin another"
_INTERRUPTED = "the step was interrupted in the thread that did it for all; try again"


class _Mailbox:
    """What was emitted for one call and is not read yet."""

    def __init__(self, requests: Sequence[Request], put: Callable[[_Item], object], *, is_driven: bool) -> None:
        self.requests = requests
        self.put = put
        self.is_driven = is_driven
        self.sequences: list[ActiveSequence] = []
        self.offers: list[tuple[Draft, int]] = []
        self.is_cancelled = False


class Runner:
    """Shares an engine. Safe to use from any thread."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine, which nobody else may use from now on."""
        self._engine = engine
        self._changed = threading.Condition()
        self._leader: object = None  # who does a step
        self._arriving: list[_Mailbox] = []
        self._open: list[_Mailbox] = []
        self._owners: dict[int, _Mailbox] = {}
        self._driver: threading.Thread | None = None
        self._is_closed = False

    @property
    def num_sequences(self) -> int:
        """Requests of all callers that have not ended."""
        with self._changed:
            return len(self._owners) + sum(len(each.requests) for each in self._arriving if not each.is_cancelled)

    def stream(self, requests: Sequence[Request]) -> Iterator[Emission]:
        """Decode requests together with those of other callers; yield what is emitted for them.

        Leaving the iterator ends them.
        """
        read: deque[_Item] = deque()
        mailbox = _Mailbox(requests, read.append, is_driven=False)
        self._submit(mailbox)
        num_open = len(requests)
        try:
            while num_open:
                if not read:
                    self._work_or_wait(mailbox, read)
                    continue
                emission = _checked(read.popleft())
                num_open -= emission.finish_reason is not None
                yield emission
        finally:
            self._withdraw(mailbox)

    async def astream(self, requests: Sequence[Request]) -> AsyncGenerator[Emission, None]:
        """Do the same for a task of an event loop; cancelling the task ends the requests."""
        mailbox, read = _mailbox_of_task(requests)
        self._submit(mailbox)
        num_open = len(requests)
        try:
            while num_open:
                emission = _checked(await read.get())
                num_open -= emission.finish_reason is not None
                yield emission
        finally:
            self._withdraw(mailbox)

    def session(self, request: Request) -> DraftSession:
        """Begin a sequence whose drafts the caller brings; for tasks of an event loop."""
        return DraftSession(self, request)

    def close(self) -> None:
        """End everything after the step that is being done; who still waits gets an error, and so do later calls."""
        with self._changed:
            self._is_closed = True
            self._tell_all(GenerationError(_CLOSED))  # first, as whoever works would go on for as long as it reads
            while self._leader is not None:
                self._changed.wait()
            self._settle()
            self._engine.close()
            self._changed.notify_all()

    def _submit(self, mailbox: _Mailbox) -> None:
        with self._changed:
            if self._is_closed:
                raise GenerationError(_CLOSED)
            self._arriving.append(mailbox)
            if mailbox.is_driven and (self._driver is None or not self._driver.is_alive()):
                self._driver = threading.Thread(target=self._drive, name="speculant-engine", daemon=True)
                self._driver.start()
            self._changed.notify_all()

    def _offer(self, mailbox: _Mailbox, draft: Draft, feedback_width: int) -> None:
        with self._changed:
            if mailbox.is_cancelled:
                raise GenerationError(_ENDED)
            mailbox.offers.append((draft, feedback_width))
            self._changed.notify_all()

    def _withdraw(self, mailbox: _Mailbox) -> None:
        """End what is left of a call; now, or after the step that is being done."""
        with self._changed:
            mailbox.is_cancelled = True
            if self._leader is mailbox:  # Ctrl-C came before the step began
                self._leader = None
            if self._leader is None:
                self._settle()
            self._changed.notify_all()

    def _work_or_wait(self, mailbox: _Mailbox, read: deque[_Item]) -> None:
        with self._changed:
            while not read and (self._leader is not None or not self._has_work):
                self._changed.wait()
            if read:
                return
            self._leader = mailbox
        self._step()

    @property
    def _has_work(self) -> bool:
        """Whether a step would do anything: not while all that is there waits for drafts of its callers."""
        changed = self._arriving or any(each.is_cancelled or each.offers for each in self._open)
        return bool(changed) or self._engine.has_work

    @property
    def _is_driven(self) -> bool:
        """Whether any task waits, or may; not those who have all that they wait for, and are slow to read it."""
        return any(mailbox.is_driven for mailbox in (*self._owners.values(), *self._arriving))

    def _drive(self) -> None:
        """Work while any task waits."""
        while True:
            with self._changed:
                while self._leader is not None or (self._is_driven and not self._has_work):
                    self._changed.wait()
                if not self._is_driven:
                    self._driver = None
                    return
                self._leader = self
            try:
                self._step()
            except BaseException:
                self._driver = None  # so that the next task gets another
                raise

    def _step(self) -> None:
        """Do one step and hand out what it emitted; an error that ends the engine's step goes to everybody."""
        try:
            with self._changed:
                self._settle()
            if self._engine.has_work:
                emissions = self._engine.step()
                with self._changed:
                    for emission in emissions:
                        self._deliver(emission)
        except BaseException as error:
            with self._changed:
                self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._changed:
                self._leader = None
                self._changed.notify_all()

    def _settle(self) -> None:
        """Begin what has arrived and end what nobody wants; by whoever may touch the engine."""
        arriving, self._arriving = self._arriving, []
        for mailbox in arriving:
            if mailbox.is_cancelled:  # it never began
                continue
            self._open.append(mailbox)
            try:
                for request in mailbox.requests:
                    sequence = self._engine.add(request)
                    mailbox.sequences.append(sequence)
                    self._owners[id(sequence)] = mailbox
            except Exception as error:  # whatever one call asks for is no business of the others
                mailbox.is_cancelled = True
                mailbox.put(error)
        for mailbox in self._open:
            offers, mailbox.offers = mailbox.offers, []
            for draft, feedback_width in () if mailbox.is_cancelled else offers:
                try:
                    self._engine.offer(mailbox.sequences[0], draft, feedback_width)
                except Exception as error:
                    mailbox.put(error)
        cancelled = [each for each in self._open if each.is_cancelled]
        self._open = [each for each in self._open if not each.is_cancelled]
        for mailbox in cancelled:
            for sequence in mailbox.sequences:
                if self._owners.pop(id(sequence), None) is not None:
                    self._engine.cancel(sequence)

    def _deliver(self, emission: Emission) -> None:
        owner = self._owners.get(id(emission.sequence))
        if owner is None:
            return
        if emission.finish_reason is not None:
            del self._owners[id(emission.sequence)]
        owner.put(emission)

    def _fail(self, error: BaseException) -> None:
        # Ctrl-C and the like are meant for the one who was working.
        self._tell_all(error if isinstance(error, Exception) else GenerationError(_INTERRUPTED))
        self._settle()

    def _tell_all(self, error: Exception) -> None:
        for mailbox in (*self._open, *self._arriving):
            mailbox.is_cancelled = True
            mailbox.put(error)


class DraftSession:
    """A sequence in the engine whose drafts its owner brings, for a task of an event loop."""

    def __init__(self, runner: Runner, request: Request) -> None:
        """Let the sequence join as soon as there is room; :meth:`Runner.session` is the usual way."""
        self._runner, self._is_over = runner, False
        self._mailbox, self._read = _mailbox_of_task([replace(request, brings_drafts=True)])
        runner._submit(self._mailbox)

    async def verify(self, draft: Draft, feedback_width: int = 0) -> Emission:
        """Do one step: verify a draft, and return what was emitted.

        Args:
            draft: the tree; empty to decode one token plainly.
            feedback_width: how many of the target's most probable tokens to return after every node.

        Raises:
            GenerationError: the draft can't be verified, and another may be sent; or the engine was closed.
        """
        if self._is_over:
            raise GenerationError(_ENDED)
        self._runner._offer(self._mailbox, draft, feedback_width)
        emission = _checked(await self._read.get())
        self._is_over = emission.finish_reason is not None
        return emission

    def close(self) -> None:
        """Leave the batch; nothing happens if the sequence has ended."""
        self._runner._withdraw(self._mailbox)


def _mailbox_of_task(requests: Sequence[Request]) -> tuple[_Mailbox, asyncio.Queue[_Item]]:
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[_Item] = asyncio.Queue()

    def put(item: _Item) -> None:
        try:
            loop.call_soon_threadsafe(read.put_nowait, item)
        except RuntimeError:  # the loop is closed, so nobody reads any more
            mailbox.is_cancelled = True

    mailbox = _Mailbox(requests, put, is_driven=True)
    return mailbox, read


def _checked(item: _Item) -> Emission:
    if isinstance(item, Exception):
        raise item
    return item
