"""Products of matrices in bfloat16 or float16 on CPUs that have no instructions for these data types.

CPUs without AVX-512 have none. torch then multiplies number by number: slowly for many rows, and 40 times as slowly if
the weights are stored as for ``inputs @ weights``, as gpt-oss stores its experts. Here a part of the weights at a time
is converted to float32, into a buffer that fits into the CPU cache, and multiplied in float32. Results are rounded to
the original data type once, after all additions, so they are at least as exact as torch's.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

_SPACE_BYTES = 1 << 21
_X86 = ("x86_64", "amd64")
_FEW_ROWS = 2
"""Up to this number of rows, torch is as fast with weights that are stored as for ``nn.functional.linear``."""


@cache
def lacks_instructions(dtype: torch.dtype) -> bool:
    """Return whether this CPU is an x86 without instructions for products of a half-precision data type."""
    checks = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    if dtype not in checks or platform.machine().lower() not in _X86:
        return False
    return not (torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, checks[dtype])())


class Float32Products(TorchFunctionMode):
    """Computes half-precision products on the CPU in float32; layers leave up to two rows to torch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace the two products that models use: of layers, and of groups of rows with their experts."""
        kwargs = kwargs or {}
        if func is nn.functional.linear:
            return _linear(*args, **kwargs)
        if func is torch._grouped_mm:
            return _grouped(*args, **kwargs)
        return func(*args, **kwargs)


def products_for(model: PreTrainedModel) -> AbstractContextManager[object]:
    """Return the context in which a model's passes run: :class:`Float32Products` if the model needs it."""
    return Float32Products() if model.device.type == "cpu" and lacks_instructions(model.dtype) else nullcontext()


def product(inputs: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply matrices in float32, a part of the weights at a time.

    Args:
        inputs: ``[n, inner]``, in any floating-point type.
        weights: ``[inner, width]``, in any floating-point type and memory order.
        bias: ``[width]``; None for none.

    Returns:
        The product plus the bias, ``[n, width]``, in the data type of ``inputs``.
    """
    rows = inputs.float()
    if weights.stride(0) == 1:  # with few rows, weights are up to 1.7 times as fast as the left operand
        turned = rows.new_empty(weights.shape[1], len(rows))
        for part, converted in _converted(weights.T):
            torch.mm(converted, rows.T, out=turned[part])
        outputs = turned.T
    else:
        outputs = rows.new_zeros(len(rows), weights.shape[1])
        for part, converted in _converted(weights):
            outputs.addmm_(rows[:, part], converted)
    if bias is not None:
        outputs += bias
    return outputs.to(inputs.dtype).contiguous()


def _converted(matrix: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts of a matrix's rows in float32; all parts share one buffer."""
    for part, space in spaces(len(matrix), matrix.shape[1], torch.float32):
        yield part, space.copy_(matrix[part])


def spaces(num_rows: int, width: int, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts of a matrix's rows, each with space for them that fits into the CPU cache.

    Args:
        num_rows: number of rows of the matrix.
        width: number of columns of the matrix.
        dtype: data type of the space; a part takes up to 2 MB, and has at least one row.

    Yields:
        The part's rows and their space, ``[rows, width]``, which the next part overwrites.
    """
    count = max(1, _SPACE_BYTES // max(1, width * dtype.itemsize))
    buffer = torch.empty(min(count, num_rows), width, dtype=dtype)
    for first in range(0, num_rows, count):
        part = slice(first, min(first + count, num_rows))
        yield part, buffer[: part.stop - first]


def _is_slow(weights: Tensor) -> bool:
    return weights.device.type == "cpu" and lacks_instructions(weights.dtype)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not _is_slow(weight) or input.shape[:-1].numel() <= _FEW_ROWS:
        return nn.functional.linear(input, weight, bias)
    outputs = product(input.reshape(-1, input.shape[-1]), weight.T, bias)
    return outputs.view(*input.shape[:-1], -1)


def _grouped(inputs: Tensor, weights: Tensor, *, offs: Tensor | None = None, **more: Any) -> Tensor:
    """Multiply groups of rows, ``[n, inner]``, by one matrix each, ``[e, inner, width]``; ``offs`` has their ends."""
    is_plain = inputs.ndim == 2 and weights.ndim == 3 and all(value is None for value in more.values())
    if offs is None or not is_plain or not _is_slow(weights):
        return torch._grouped_mm(inputs, weights, offs=offs, **more)
    outputs, first = inputs.new_zeros(len(inputs), weights.shape[2]), 0
    for matrix, end in zip(weights, offs.tolist(), strict=True):
        if end > first:
            outputs[first:end] = product(inputs[first:end], matrix)
        first = end
    return outputs
