"""Weights in memory that a GPU copies from by itself, beside what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant_graph.errors import ConfigError
from speculant_verifier.offload.files import StoredTensor, WeightReader


@dataclass(frozen=True, slots=True, eq=False)
class PinnedTensor:
    """Numbers that a GPU can reach."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    def row(self, index: int) -> PinnedTensor:
        """Return one of its rows."""
        return PinnedTensor(self.tensor[index])


class PinnedWeights:
    """Copies weights from this machine's memory to tensors of a GPU, on a stream of its own.

    A copy begins when the GPU has computed what was asked of it before, so that it never overwrites what is in use, and
    what is asked of it after :meth:`wait` begins when the copy has ended. The CPU waits for neither.
    """

    def __init__(self, device: torch.device) -> None:
        """Take the GPU."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._stall_s = 0.0
        self._held: list[Tensor] = []
        self.num_bytes = 0
        """Copied so far."""

    def hold(self, stored: StoredTensor, dtype: torch.dtype, reader: WeightReader) -> PinnedTensor:
        """Read weights into memory, to be copied from.

        Raises:
            ConfigError: there is no memory that the GPU can reach.
        """
        tensor = torch.empty(stored.shape, dtype=dtype)
        # torch's own pinned memory comes in powers of two.
        failure = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
        if int(failure):
            raise ConfigError(
                f"memory can't be pinned for '{self._device}' ({failure}); allow more of it (ulimit -l), or choose a "
                "smaller model (--verifier.model-name)"
            )
        self._held.append(tensor)
        reader.wait(reader.read([(stored, tensor)]))
        return PinnedTensor(tensor)

    def read(self, pairs: Sequence[tuple[PinnedTensor, Tensor]]) -> list[torch.cuda.Event]:
        """Begin to copy; every tensor to one of the same shape.

        Returns:
            What :meth:`wait` takes.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for pinned, tensor in pairs:
                tensor.copy_(pinned.tensor, non_blocking=True)
                self.num_bytes += tensor.nbytes
            return [self._stream.record_event()]

    def wait(self, started: Sequence[torch.cuda.Event]) -> None:
        """Let what the GPU is asked to compute from now on begin when all that was begun is there."""
        stream = torch.cuda.current_stream(self._device)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record(stream)
        for event in started:
            stream.wait_event(event)
        after.record(stream)
        self._waits.append((before, after))

    @property
    def stall_s(self) -> float:
        """Seconds that the GPU has waited for copies, as far as it has come."""
        while self._waits and self._waits[0][1].query():
            before, after = self._waits.pop(0)
            self._stall_s += before.elapsed_time(after) / 1e3
        return self._stall_s

    def drain(self) -> None:
        """Return when nothing is copied any more."""
        self._stream.synchronize()

    def close(self) -> None:
        """End what is being copied, and give the memory back."""
        self.drain()
        for tensor in self._held:
            torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
        self._held.clear()
