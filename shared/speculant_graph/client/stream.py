"""A long-lived stream of steps, read by a thread: gRPC's synchronous streams have no deadline per message.

gRPC cancels a whole call when its deadline passes. So the stream has none: a thread hands on every answer, and the
caller that waits for one has its own patience.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import grpc

from speculant_graph.client.setup import error_of
from speculant_graph.errors import DrafterUnavailableError, SpeculantError


class StepStream:
    """A StreamDraft call, of bytes."""

    def __init__(
        self,
        start_call: Callable[[Iterator[bytes]], Any],
        on_answer: Callable[[bytes], None],
        on_end: Callable[[SpeculantError], None],
    ) -> None:
        """Make a stream that is not started, which costs nothing.

        Args:
            start_call: starts the call with what is sent.
            on_answer: called by the reading thread.
            on_end: called by the reading thread when nothing more will come.
        """
        self._start_call, self._on_answer, self._on_end = start_call, on_answer, on_end
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._call: Any = None
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, name="speculant-draft-reader", daemon=True)

    def send(self, payload: bytes) -> None:
        """Hand over a message; returns at once, also before the stream is started."""
        self._requests.put(payload)

    def start(self) -> None:
        """Start the call; whether a server answers shows later."""
        self._reader.start()

    def close(self) -> None:
        """Cancel the call. The reading thread ends soon."""
        self._is_closed = True
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait for the reading thread, which may never have run."""
        if self._reader.ident is not None:
            self._reader.join(timeout_s)

    def _read(self) -> None:
        error: SpeculantError = DrafterUnavailableError("the drafter ended the stream")
        try:
            self._call = self._start_call(iter(self._requests.get, None))
            if self._is_closed:  # between the two
                self._call.cancel()
            for payload in self._call:
                self._on_answer(payload)
        except grpc.RpcError as failure:
            error = error_of(failure)  # it is the call itself
        except Exception as failure:  # a closed channel, or an answer that breaks our own code
            error = DrafterUnavailableError(f"the stream failed: {failure!r}")
            if self._call is not None:
                self._call.cancel()
        finally:
            self._requests.put(None)  # gRPC's thread waits for one more
            self._on_end(error)
