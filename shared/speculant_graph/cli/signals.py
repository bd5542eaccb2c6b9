"""Signals that end a command: it leaves by an exception, wherever it is found."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, get_ident, main_thread
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from speculant_graph.errors import SpeculantError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_S = 0.05
_SOON_S = 0.5
"""Errors of others that come so soon after a signal come of it."""


class _Ended(SystemExit):
    """A signal ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Leave by an exception on SIGTERM and SIGHUP, so that nothing half-written remains, and on Ctrl-C by Python's own.

    An exception that comes up while machine code, such as a compiler's, has called back is dropped there, with a
    traceback on standard error. The signal is then sent again, without that traceback. What goes on in between may fail
    of something else, or not at all. Other machine code makes an error of its own of it, which is taken for the signal.

    Raises:
        SystemExit: SIGTERM or SIGHUP; 128 and the signal's number.
        KeyboardInterrupt: Ctrl-C.
    """
    if current_thread() is not main_thread():  # only that one can be told
        yield
        return
    # What is ignored, as nohup does it, or handled by whoever calls this, stays so.
    ends = [end for end in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(end) is signal.SIG_DFL]
    heeds_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    lost: KeyboardInterrupt | _Ended | None = None
    came = -math.inf
    ending: KeyboardInterrupt | _Ended = KeyboardInterrupt()
    repeats: list[Timer] = []

    def note(exception: KeyboardInterrupt | _Ended) -> None:
        nonlocal came, ending
        came, ending = time.monotonic(), exception

    def leave(number: int, _: FrameType | None) -> None:
        for end in ends:
            signal.signal(end, signal.SIG_IGN)  # a second one would interrupt the cleaning up
        note(_Ended(number))
        raise ending

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Python's own handler under another name: asyncio would replace it by one that only cancels what awaits.
        note(KeyboardInterrupt())
        signal.default_int_handler(number, frame)

    def has_sent_again(dropped: BaseException | None) -> bool:
        nonlocal lost
        if isinstance(dropped, KeyboardInterrupt | _Ended):
            lost = dropped
            number = signal.SIGINT
            if isinstance(lost, _Ended):
                number = signal.Signals(lost.number)
                signal.signal(number, leave)
            again = Timer(_AGAIN_S, signal.pthread_kill, (thread, number))  # which ends waiting, too
            again.daemon = True
            again.start()
            repeats.append(again)
        # What was being made when the signal came can't be taken down cleanly either.
        return lost is not None

    def note_dropped(dropped: UnraisableHookArgs) -> None:
        if not has_sent_again(dropped.exc_value):
            report(dropped)

    def note_printed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not has_sent_again(error):
            show(kind, error, trace)

    thread = get_ident()
    report, sys.unraisablehook = sys.unraisablehook, note_dropped
    show, sys.excepthook = sys.excepthook, note_printed
    for end in ends:
        signal.signal(end, leave)
    if heeds_interrupts:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if lost is not None:
            raise lost from error
        if time.monotonic() - came < _SOON_S and not isinstance(error, SpeculantError):
            raise ending from error
        raise
    finally:
        for again in repeats:
            again.cancel()
        sys.unraisablehook, sys.excepthook = report, show
        for end in ends:
            signal.signal(end, signal.SIG_DFL)
        if heeds_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
