"""Streams that carry steps to a sidecar, over gRPC or over the step socket of a sidecar on this machine.

``speculant_drafter/step_socket.py`` is the server side of the step socket.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from speculant_graph.errors import DrafterUnavailableError, SpeculantError
from speculant_graph.rpc.addresses import step_socket_path
from speculant_graph.rpc.channel import MAX_MESSAGE_BYTES
from speculant_graph.rpc.status import error_of
from speculant_graph.rpc.step_frames import FrameReader, framed

_CONNECT_S = 0.05
_READ_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("3i")
"""Layout of Linux peer credentials: process, user and group id of the listening process."""


class GrpcStream:
    """A StreamDraft call with raw bytes; a thread reads the answers.

    A gRPC deadline cancels the whole call, and synchronous streams have no deadline per message. The stream of steps
    therefore has no deadline. A thread delivers every answer, and each caller limits the time that it waits.
    """

    def __init__(
        self,
        start_call: Callable[[Iterator[bytes]], Any],
        on_answer: Callable[[bytes], None],
        on_end: Callable[[SpeculantError], None],
    ) -> None:
        """Make a stream, which takes little time, and do not start it.

        Args:
            start_call: starts the call with an iterator of messages.
            on_answer: called by the reading thread with each answer.
            on_end: called by the reading thread after the last answer.
        """
        self._start_call, self._on_answer, self._on_end = start_call, on_answer, on_end
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._call: Any = None
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, name="speculant-draft-reader", daemon=True)

    def send(self, payload: bytes) -> None:
        """Queue a message, and return at once, even if the stream has not been started yet."""
        self._requests.put(payload)

    def start(self) -> None:
        """Start the call without waiting for the server."""
        self._reader.start()

    def close(self) -> None:
        """Cancel the call. The reading thread ends soon after the stream is closed."""
        self._is_closed = True
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the reading thread, if it was ever started."""
        if self._reader.ident is not None:
            self._reader.join(timeout_s)

    def _read(self) -> None:
        error: SpeculantError = DrafterUnavailableError("the drafter ended the stream")
        try:
            self._call = self._start_call(iter(self._requests.get, None))
            if self._is_closed:  # closed while the call started
                self._call.cancel()
            for payload in self._call:
                self._on_answer(payload)
        except grpc.RpcError as failure:
            error = error_of(failure)  # the exception is the call object
        except Exception as failure:  # a closed channel, or a bug in handling an answer
            error = DrafterUnavailableError(f"the stream failed: {failure!r}")
            if self._call is not None:
                self._call.cancel()
        finally:
            self._requests.put(None)  # wakes gRPC's sending thread
            self._on_end(error)


class SocketStream:
    """A connection to a step socket, with the interface of :class:`GrpcStream`; a thread reads the answers."""

    def __init__(
        self, path: Path, on_answer: Callable[[bytes], None], on_end: Callable[[SpeculantError], None]
    ) -> None:
        """Connect.

        Args:
            path: path of the sidecar's gRPC socket; the step socket is in the same folder.
            on_answer: called by the reading thread with each answer.
            on_end: called by the reading thread after the last answer.

        Raises:
            OSError: nothing listens on the step socket, or its listener is not the owner of the gRPC socket.
        """
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(_CONNECT_S)
            self._socket.connect(str(step_socket_path(path)))
            self._socket.settimeout(None)
            if not hasattr(socket, "SO_PEERCRED"):
                raise OSError("this system does not report who listens")
            # In a folder that other users can write to, another user could listen in place of the sidecar.
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[1] != path.stat().st_uid:
                raise PermissionError("a user other than the sidecar's listens there")
        except OSError:
            self._socket.close()
            raise
        self._on_answer, self._on_end = on_answer, on_end
        self._backlog: deque[bytes] = deque()  # bytes that the socket did not accept at once
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="speculant-draft-reader", daemon=True)

    def send(self, payload: bytes) -> None:
        """Send a message without blocking."""
        frame = framed(payload)
        with self._lock:
            if not self._backlog:
                try:
                    sent = self._socket.send(frame, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    return  # the reading thread reports it
                if sent == len(frame):
                    return
                frame = frame[sent:]
                threading.Thread(target=self._send_backlog, name="speculant-draft-writer", daemon=True).start()
            self._backlog.append(frame)

    def start(self) -> None:
        """Start the reading thread."""
        self._reader.start()

    def close(self) -> None:
        """Disconnect. The reading thread ends soon after the stream is closed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader.ident is None:
            self._socket.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the reading thread, if it was ever started."""
        if self._reader.ident is not None:
            self._reader.join(timeout_s)

    def _send_backlog(self) -> None:
        with self._lock:
            pass  # send() appends the first frame before it releases the lock
        with contextlib.suppress(OSError):
            while True:
                self._socket.sendall(self._backlog[0])
                with self._lock:
                    self._backlog.popleft()
                    if not self._backlog:
                        return

    def _read(self) -> None:
        frames = FrameReader(MAX_MESSAGE_BYTES)
        error: SpeculantError = DrafterUnavailableError("the drafter ended the stream")
        try:
            while data := self._socket.recv(_READ_BYTES):
                for payload in frames.feed(data):
                    self._on_answer(payload)
        except Exception as failure:  # a broken connection, or a bug in handling an answer
            error = DrafterUnavailableError(f"the stream failed: {failure!r}")
        finally:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._on_end(error)
