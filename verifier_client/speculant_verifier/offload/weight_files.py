"""Reads streamed weights from a checkpoint's files, or copies them from host memory to a GPU during computation.

Threads read the files without the page cache, which would use memory beyond the budget and copy every byte once more.
The threads read aligned chunks (``O_DIRECT``) into small buffers, and convert the contents into the target tensors. On
file systems without direct reads, the threads read through the page cache and then drop the pages.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speculant_graph.errors import ConfigError, GenerationError
from speculant_verifier.sources import MODEL_SETTING

_CHUNK = 4 << 20
_ALIGNED = 4096
_MEASURED = 1 << 26
"""Number of bytes per read in the measurement of the reading speed."""
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location of a tensor in a checkpoint file."""

    path: str
    offset: int
    """Offset of the tensor's first byte in the file."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in the file, in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, index: int) -> StoredTensor:
        """Return the location of one row of the tensor."""
        shape = self.shape[1:]
        return StoredTensor(self.path, self.offset + index * prod(shape) * self.dtype.itemsize, self.dtype, shape)


def stored_tensors(index: Mapping[str, Mapping[str, str]]) -> dict[str, StoredTensor]:
    """Locate weights in their checkpoint files.

    Args:
        index: maps a weight's name to ``safetensors_file`` and ``weight_name``, as in accelerate.

    Raises:
        ConfigError: a file is damaged, or has an unsupported dtype.
    """
    headers: dict[str, tuple[int, dict[str, Any]]] = {}
    found = {}
    for name, entry in index.items():
        path = entry["safetensors_file"]
        try:
            if path not in headers:
                headers[path] = _header(path)
            start, header = headers[path]
            described = header[entry["weight_name"]]
            first, last = map(int, described["data_offsets"])
            weight = StoredTensor(path, start + first, _DTYPES[described["dtype"]], tuple(described["shape"]))
            if first < 0 or last - first != weight.num_bytes or start + last > os.path.getsize(path):
                raise ValueError(f"bytes {first} to {last} are not {weight.shape} of {weight.dtype}")
            found[name] = weight
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"weight '{name}' can't be read from {path} ({error!r}); download the model again, "
                "or give one in bfloat16",
                field=MODEL_SETTING,
            ) from error
    return found


def require_same(name: str, stored: StoredTensor, expected: Tensor) -> None:
    """Reject a weight that contradicts the model's configuration.

    Raises:
        ConfigError: the shapes differ, or the file and the configuration disagree on whether the weight is packed.
    """
    of_file, wanted = ((tuple(each.shape), each.dtype.is_floating_point) for each in (stored, expected))
    if of_file != wanted:
        raise ConfigError(
            f"weight '{name}' in {stored.path} has the shape {of_file[0]} and the data type {stored.dtype}, but "
            f"config.json has {wanted[0]} and {expected.dtype}; download the model again, or set {{field}} to another",
            field=MODEL_SETTING,
        )


def type_in_memory(weight: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return a weight's dtype in memory, which is the model's dtype unless the weight is packed."""
    return dtype if weight.dtype.is_floating_point else weight.dtype


def _header(path: str) -> tuple[int, dict[str, Any]]:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > os.path.getsize(path):
            raise ValueError("its header is longer than the file")
        return 8 + length, json.loads(file.read(length))


def require_whole(folder: Path) -> None:
    """Raise an error if a file of weights in a folder is shorter than its header says.

    Raises:
        ConfigError: a file is damaged or too short.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            start, header = _header(str(path))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            is_whole = path.stat().st_size >= start + max(ends, default=0)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is damaged ({error})", fix="download it again", field=MODEL_SETTING) from error
        if not is_whole:
            raise ConfigError(f"{path} is too short", fix="download it again", field=MODEL_SETTING)


def require_weights(folder: Path, expected: Mapping[str, Tensor]) -> None:
    """Raise an error if a folder's files lack a weight, or hold it in another shape.

    Args:
        folder: folder of the checkpoint.
        expected: the weights by their names in the checkpoint; they may be on the meta device.

    Raises:
        ConfigError: a file is damaged, or a weight is missing or does not match.
    """
    require_whole(folder)
    found = {name: str(path) for path in sorted(folder.glob("*.safetensors")) for name in _header(str(path))[1]}
    if missing := sorted(expected.keys() - found.keys()):
        raise ConfigError(
            f"{folder} lacks {len(missing)} weights of the model's architecture, first {missing[0]}",
            fix="download the model again, or set {field} to another",
            field=MODEL_SETTING,
        )
    index = {name: {"safetensors_file": found[name], "weight_name": name} for name in expected}
    for name, stored in stored_tensors(index).items():
        require_same(name, stored, expected[name])


def bytes_per_second(folder: Path, most: int = 1 << 31) -> float:
    """Measure the speed of reading a checkpoint's weights, in bytes per second; 0 if the files are too small.

    Args:
        folder: folder of the checkpoint.
        most: maximum number of bytes to read.
    """
    pieces = [
        StoredTensor(str(path), first, torch.uint8, (_MEASURED,))
        for path in sorted(folder.glob("*.safetensors"))
        for first in range(0, path.stat().st_size - _MEASURED + 1, _MEASURED)
    ][: most // _MEASURED]
    if not pieces:
        return 0.0
    reader, scratch = WeightReader(), torch.empty(_MEASURED, dtype=torch.uint8)
    started_s = time.perf_counter()
    reader.wait(reader.read([(piece, scratch) for piece in pieces]))
    elapsed_s = time.perf_counter() - started_s
    reader.close()
    return len(pieces) * _MEASURED / elapsed_s


class WeightReader:
    """Reads weights from files into tensors, in its own threads."""

    def __init__(self, num_threads: int = 2) -> None:
        """Start the threads, each with a buffer of a few megabytes."""
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, "speculant-weights")
        self._own = threading.local()
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()
        self.num_bytes = 0
        """Bytes read so far."""
        self.stall_s = 0.0
        """Total seconds for which forward passes waited for reads."""

    def read(self, pairs: Sequence[tuple[StoredTensor, Tensor]]) -> list[Future[None]]:
        """Start reading stored tensors into contiguous tensors of the same shape and any dtype.

        Returns:
            The started reads, to pass to :meth:`wait`.
        """
        started = []
        for stored, tensor in pairs:
            flat = tensor.view(-1)
            step = _CHUNK // stored.dtype.itemsize
            for first in range(0, flat.numel(), step):
                part = flat[first : first + step]
                started.append(self._threads.submit(self._chunk, stored, first, part))
        return started

    def wait(self, started: Sequence[Future[None]]) -> None:
        """Wait until started reads are done.

        Raises:
            GenerationError: a weight can't be read.
        """
        started_s = time.perf_counter()
        for part in started:
            part.result()
        self.stall_s += time.perf_counter() - started_s

    def drain(self) -> None:
        """Cancel reads that have not begun, and wait until all other reads are done."""
        self._threads.shutdown(cancel_futures=True)
        self._threads = ThreadPoolExecutor(self._num_threads, "speculant-weights")

    def close(self) -> None:
        """Stop reading, and close the files."""
        self._threads.shutdown(cancel_futures=True)
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _chunk(self, stored: StoredTensor, first: int, into: Tensor) -> None:
        size = into.numel() * stored.dtype.itemsize
        offset = stored.offset + first * stored.dtype.itemsize
        start = offset - offset % _ALIGNED
        skipped = offset - start
        buffer: mmap.mmap | None = getattr(self._own, "buffer", None)
        if buffer is None:  # whole pages, because the disk writes to them directly
            buffer = self._own.buffer = mmap.mmap(-1, _CHUNK + 2 * _ALIGNED)
        needed = skipped + size
        whole = -(-needed // _ALIGNED) * _ALIGNED
        try:
            file = self._open(stored.path)
            done = 0
            while True:  # a signal may end a read early, and the last page of a file is short
                count = os.preadv(file, [memoryview(buffer)[done:whole]], start + done)
                if done + count >= needed:
                    break
                if count < _ALIGNED:
                    raise OSError("the file is too short")
                done += count - count % _ALIGNED
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, start, whole, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise GenerationError(
                f"weights can't be read from {stored.path} ({error}); check the disk; later requests read it again"
            ) from error
        into.copy_(torch.frombuffer(buffer, dtype=stored.dtype, count=into.numel(), offset=skipped))
        with self._lock:
            self.num_bytes += size

    def _open(self, path: str) -> int:
        with self._lock:
            if path not in self._files:
                self._files[path] = os.open(path, os.O_RDONLY)
                with suppress(OSError):  # not supported; some file systems fail only at the first read
                    file = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
                    try:
                        os.preadv(file, [mmap.mmap(-1, _ALIGNED)], 0)
                        file, self._files[path] = self._files[path], file
                    finally:
                        os.close(file)
            return self._files[path]


class PinnedWeights:
    """Copies weights from host memory to tensors of a GPU, on a separate stream.

    A copy begins only when all GPU work that was enqueued earlier has ended, so it never overwrites tensors in use. GPU
    work that is enqueued after a call of :meth:`wait` begins only when the copy has ended. The CPU never waits for a
    copy.
    """

    def __init__(self, device: torch.device) -> None:
        """Create the CUDA stream for copies on a GPU."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._stall_s = 0.0
        self._held: list[Tensor] = []
        self.num_bytes = 0
        """Bytes copied so far."""

    def space(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate pinned host memory from which weights are copied.

        Raises:
            ConfigError: the memory can't be pinned.
        """
        tensor = torch.empty(tuple(shape), dtype=dtype)
        # torch allocates pinned memory in powers of two.
        failure = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
        if int(failure):
            raise ConfigError(
                f"memory can't be pinned for '{self._device}' ({failure}); allow more of it (ulimit -l), or choose a "
                "smaller model ({field})",
                field=MODEL_SETTING,
            )
        self._held.append(tensor)
        return tensor

    def read(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[torch.cuda.Event]:
        """Start copying each tensor to a GPU tensor of the same shape.

        Returns:
            The started copies, to pass to :meth:`wait`.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for pinned, tensor in pairs:
                tensor.copy_(pinned, non_blocking=True)
                self.num_bytes += tensor.nbytes
            return [self._stream.record_event()]

    def wait(self, started: Sequence[torch.cuda.Event]) -> None:
        """Make the GPU's later work wait for started copies."""
        stream = torch.cuda.current_stream(self._device)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record(stream)
        for event in started:
            stream.wait_event(event)
        after.record(stream)
        self._waits.append((before, after))

    @property
    def stall_s(self) -> float:
        """Total seconds for which the GPU waited for copies."""
        while self._waits and self._waits[0][1].query():
            before, after = self._waits.pop(0)
            self._stall_s += before.elapsed_time(after) / 1e3
        return self._stall_s

    def drain(self) -> None:
        """Wait until all copies are done."""
        self._stream.synchronize()

    def close(self) -> None:
        """Finish all copies, and free the pinned memory."""
        self.drain()
        for tensor in self._held:
            torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
        self._held.clear()


def new_space(shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, mmap.mmap | None]:
    """Return a zero tensor with the dtype and device of ``like``; on a CPU, also the mapped memory that it uses.

    The system gets mapped memory back as soon as it is freed, whereas allocators would cache it. The system allocates
    pages when they are first written. Pages are freed together with the tensor, or by ``madvise``, after which they
    read as zeros.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape), None
    size = torch.Size(shape).numel() * like.element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape), memory
