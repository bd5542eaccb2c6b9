"""Many arrays as one argument: kernels are handed addresses and open them themselves.

Handing an array to a kernel takes 0.2 microseconds, and a draft needs fifty of them. So what a sequence drafts from is
kept as one small array of addresses and shapes, written when something moves, and a kernel makes views of it. Whoever
holds the addresses holds the arrays, too (:class:`Handles`): an address never outlives its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from speculant_graph.draft.calibration import CalibrationArrays, Mixture
from speculant_graph.draft.evidence import Entries, GraphArrays, RecycledArrays, Sources
from speculant_graph.draft.history import HistoryArrays
from speculant_graph.draft.workspace import Tree, Workspace
from speculant_graph.graph.compiled import Integer, inlined
from speculant_graph.graph.layout import Int64Array


class Handles:
    """Addresses and shapes of arrays, and the arrays."""

    def __init__(self, *bundles: Any) -> None:
        """Take the arrays of named tuples, nested or not, in order."""
        self._arrays = list(_arrays(bundles))
        self.values: Int64Array = np.array(
            [(array.ctypes.data, array.shape[0], array.size // max(1, array.shape[0])) for array in self._arrays],
            np.int64,
        ).reshape(-1)
        """(address, rows, values in a row) of every array, shape ``[3 * arrays]``."""


def _arrays(bundle: Any) -> Iterable[Any]:
    if isinstance(bundle, np.ndarray):
        if not bundle.flags.c_contiguous or bundle.ndim > 2:
            raise TypeError("kernels view contiguous arrays of one or two dimensions")
        yield bundle
    else:
        for part in bundle:
            yield from _arrays(part)


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@inlined
def _line(handles: Int64Array, index: Integer, kind: Any) -> Any:
    return carray(_pointer(handles[3 * index]), (handles[3 * index + 1],), kind)


@inlined
def _grid(handles: Int64Array, index: Integer, kind: Any) -> Any:
    return carray(_pointer(handles[3 * index]), (handles[3 * index + 1], handles[3 * index + 2]), kind)


@inlined
def open_graph(handles: Int64Array) -> Any:
    """Return the :class:`GraphArrays` of a drafter."""
    return GraphArrays(_line(handles, 0, np.uint32), _grid(handles, 1, np.int64), _line(handles, 2, np.int64), _grid(handles, 3, np.int32), _grid(handles, 4, np.int64))


@inlined
def open_calibration(handles: Int64Array) -> Any:
    """Return the :class:`CalibrationArrays` of a drafter."""
    return CalibrationArrays(_grid(handles, 5, np.float64), _grid(handles, 6, np.float64))


@inlined
def open_workspace(handles: Int64Array) -> Any:
    """Return the :class:`Workspace` of a drafter."""
    tree = Tree(_line(handles, 7, np.int64), _line(handles, 8, np.int64), _line(handles, 9, np.float64), _line(handles, 10, np.int64), _grid(handles, 11, np.int64), _line(handles, 12, np.int64), _line(handles, 13, np.int64), _line(handles, 14, np.int64), _line(handles, 15, np.int64), _line(handles, 16, np.float64))
    entries = Entries(_line(handles, 17, np.int64), _line(handles, 18, np.int64), _line(handles, 19, np.int64), _line(handles, 20, np.int64), _line(handles, 21, np.int64), _line(handles, 22, np.int64), _line(handles, 23, np.int64), _line(handles, 24, np.int64), _line(handles, 25, np.int64), _grid(handles, 26, np.int64), _grid(handles, 27, np.int64))
    mixture = Mixture(_line(handles, 28, np.int64), _line(handles, 29, np.int64), _line(handles, 30, np.float64), _line(handles, 31, np.int64), _line(handles, 32, np.int64), _grid(handles, 33, np.float64))
    return Workspace(tree, entries, mixture)


@inlined
def open_sources(fixed: Int64Array, handles: Int64Array) -> Any:
    """Return the :class:`Sources` of a sequence."""
    session = HistoryArrays(_line(handles, 0, np.int32), _grid(handles, 1, np.int32), _grid(handles, 2, np.int64), _line(handles, 3, np.int64), _line(handles, 4, np.int64))
    learned = HistoryArrays(_line(handles, 5, np.int32), _grid(handles, 6, np.int32), _grid(handles, 7, np.int64), _line(handles, 8, np.int64), _line(handles, 9, np.int64))
    recycled = RecycledArrays(_line(handles, 10, np.int64), _grid(handles, 11, np.int32))
    return Sources(open_graph(fixed), session, learned, recycled, _line(handles, 12, np.int64))


@inlined
def open_state(handles: Int64Array) -> Any:
    """Return (order, record) of the graph at the end of a sequence."""
    return _line(handles, 13, np.int64)


@inlined
def open_costs(handles: Int64Array) -> Any:
    """Return the costs of verifying, empty if it is free."""
    return _line(handles, 14, np.float64)
