"""Ctrl-C while machine code is made, whose maker would lose it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, get_ident, main_thread
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_REPEAT_S = 0.1


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """End by KeyboardInterrupt even if Ctrl-C comes while kernels are compiled.

    The compiler's callbacks from C lose the exception, with a traceback on standard error. What goes on then may fail
    of something else, or not at all, so it is interrupted again.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or current_thread() is not main_thread():
        yield  # whoever calls this handles it
        return
    is_interrupted = False
    repeats: list[Timer] = []
    show = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.default_int_handler(number, frame)

    def repeat(lost: UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            again = Timer(_REPEAT_S, signal.pthread_kill, (get_ident(), signal.SIGINT))  # which ends waiting, too
            again.daemon = True
            again.start()
            repeats.append(again)
        elif not is_interrupted:  # what was being made when it came can't be taken down cleanly either
            show(lost)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = repeat
    try:
        yield
    except Exception as error:
        if is_interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for again in repeats:
            again.cancel()
        sys.unraisablehook = show
        signal.signal(signal.SIGINT, signal.default_int_handler)
