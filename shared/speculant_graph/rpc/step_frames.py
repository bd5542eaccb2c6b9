"""Messages of a step socket: each after its length, 4 bytes, little-endian."""

from __future__ import annotations

from collections.abc import Iterator

_LENGTH = 4


def framed(payload: bytes) -> bytes:
    """Return a message as it is sent."""
    return len(payload).to_bytes(_LENGTH, "little") + payload


class FrameReader:
    """Puts messages together from what arrives."""

    def __init__(self, most_bytes: int) -> None:
        """Begin; ``most_bytes`` is the longest message."""
        self._most_bytes = most_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now.

        Raises:
            ValueError: a message is longer than any may be.
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
