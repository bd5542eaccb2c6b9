"""Frames of a step socket: each message is preceded by its length, a little-endian number of 4 bytes."""

from __future__ import annotations

from collections.abc import Iterator

_LENGTH = 4


def framed(payload: bytes) -> bytes:
    """Return a message preceded by its length."""
    return len(payload).to_bytes(_LENGTH, "little") + payload


class FrameReader:
    """Assembles messages from received bytes."""

    def __init__(self, most_bytes: int) -> None:
        """Make a reader of messages that have at most ``most_bytes`` bytes."""
        self._most_bytes = most_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add received bytes, and yield the messages that are now complete.

        Raises:
            ValueError: a message is longer than the limit.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH:
            end = _LENGTH + int.from_bytes(buffer[:_LENGTH], "little")
            if end > _LENGTH + self._most_bytes:
                raise ValueError(f"a message of {end - _LENGTH} bytes is longer than {self._most_bytes}")
            if len(buffer) < end:
                return
            yield bytes(buffer[_LENGTH:end])
            del buffer[:end]
