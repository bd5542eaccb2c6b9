"""Signals that end a command: it leaves by an exception, wherever it is found."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Leave by an exception on SIGTERM and SIGHUP, so that nothing half-written remains, and on Ctrl-C by Python's own.

    Raises:
        SystemExit: SIGTERM or SIGHUP; 128 and the signal's number.
        KeyboardInterrupt: Ctrl-C.
    """
    if current_thread() is not main_thread():  # only that one handles signals
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        for end in ends:
            signal.signal(end, signal.SIG_IGN)  # a second one would interrupt the cleaning up
        raise SystemExit(128 + number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Python's own handler under another name: asyncio would replace it by one that only cancels what awaits.
        signal.default_int_handler(number, frame)

    # What is ignored, as nohup does it, or handled by the caller, stays so.
    ends = [end for end in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(end) is signal.SIG_DFL]
    handles_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for end in ends:
        signal.signal(end, leave)
    if handles_interrupts:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for end in ends:
            signal.signal(end, signal.SIG_DFL)
        if handles_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
