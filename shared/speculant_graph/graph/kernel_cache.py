"""Machine code on disk, which one process makes at a time and the others wait for."""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from contextlib import suppress
from typing import Any

from loguru import logger
from numba.core.caching import FunctionCache

from speculant_graph.graph.compile_clock import compile_time, compiling

_PATIENCE_S = 120.0
"""After which a kernel is compiled all the same."""
_PAUSE_S = 0.02
_FILE = "being-compiled.lock"
_SILENCE_S = 15.0
"""Of compiling, after which it is said again that this process does."""

_descriptors: dict[str, int] = {}
"""Folder -> its file of locks. Never closed: that would give up all of this process's locks in it."""


class SharedCache(FunctionCache):
    """Numba's cache of one function, for processes that start together.

    Without a lock each of them would compile every kernel. And of two that save the machine code of two signatures at
    once, one may find the other's under its own.
    """

    def __init__(self, function: Any) -> None:
        """Make the cache of a function.

        Args:
            function: as it was before it was compiled.
        """
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._place = zlib.crc32(self._impl.filename_base.encode())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code of a signature; None if this process is to compile it."""
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is not None:
            return found
        _progress.tell()
        with compiling():
            if self._take_turn():
                found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is not None:
            self._end_turn()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code that was compiled."""
        super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        self._end_turn()
        _progress.tell_again()

    def _take_turn(self) -> bool:
        """Wait until no other process compiles this function; False if that can't be known, or takes too long."""
        deadline = time.monotonic() + _PATIENCE_S
        try:
            descriptor = self._descriptor()
        except OSError:  # no folder that can be written
            return False
        while time.monotonic() < deadline:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place)
            except (BlockingIOError, PermissionError):  # systems differ in what they call it
                time.sleep(_PAUSE_S)
            except OSError:  # a file system without locks
                return False
            else:
                return True
        return False

    def _end_turn(self) -> None:
        with suppress(OSError):
            fcntl.lockf(self._descriptor(), fcntl.LOCK_UN, 1, self._place)

    def _descriptor(self) -> int:
        folder = str(self.cache_path)
        if folder not in _descriptors:
            self._impl.locator.ensure_cache_path()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            _descriptors[folder] = os.open(os.path.join(folder, _FILE), flags, 0o666)
        return _descriptors[folder]


class _Progress:
    """Says that this process compiles, and now and then that it still does; one thread at a time does."""

    def __init__(self) -> None:
        self._told_at_s: float | None = None

    def tell(self) -> None:
        if self._told_at_s is None:
            self._told_at_s = compile_time().wall_s
            logger.info(
                "compiling what this needs, the first time on this machine: a minute or two, more where it is busy"
            )

    def tell_again(self) -> None:
        wall_s = compile_time().wall_s
        if self._told_at_s is not None and wall_s - self._told_at_s >= _SILENCE_S:
            self._told_at_s = wall_s
            logger.info("still compiling: {:.0f} s so far", wall_s)


_progress = _Progress()
