"""How long this process has compiled kernels: what is done for the first time on a machine is not to look slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident

from numba.core import event


@dataclass(frozen=True, slots=True)
class CompileTime:
    """Seconds since the process began."""

    wall_s: float
    """Of compiling, and of waiting for another process that compiles the same."""
    cpu_s: float
    """Of compiling."""


class _Clock(event.Listener):
    """Told by numba when it compiles. One thread at a time does: it holds numba's lock of the compiler."""

    def __init__(self) -> None:
        self._spent = CompileTime(0.0, 0.0)
        self._depth = 0
        self._began = CompileTime(0.0, 0.0)
        self._thread = get_ident()

    def on_start(self, _: object) -> None:
        if self._depth == 0:  # else a kernel is being compiled for another one
            self._began, self._thread = _now(), get_ident()
        self._depth += 1

    def on_end(self, _: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._spent = self._until_now()

    def spent(self) -> CompileTime:
        """Return what compiling took so far; what it now takes another thread is left out."""
        return self._until_now() if self._depth and self._thread == get_ident() else self._spent

    def _until_now(self) -> CompileTime:
        spent, began, now = self._spent, self._began, _now()
        return CompileTime(spent.wall_s + now.wall_s - began.wall_s, spent.cpu_s + now.cpu_s - began.cpu_s)


_clock = _Clock()
event.register("numba:compile", _clock)  # type: ignore[no-untyped-call]


def compile_time() -> CompileTime:
    """Return what compiling has taken this process so far, kernels of others included."""
    return _clock.spent()


@contextmanager
def compiling() -> Iterator[None]:
    """Count the time of a block, which must run under numba's lock of the compiler, as compiling."""
    _clock.on_start(None)
    try:
        yield
    finally:
        _clock.on_end(None)


def _now() -> CompileTime:
    return CompileTime(time.monotonic(), time.thread_time())
