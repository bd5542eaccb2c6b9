"""Many arrays as one argument: kernels are handed addresses and open them themselves.

Handing an array to a kernel takes 0.2 microseconds, and a draft needs fifty of them. So what a sequence drafts from is
kept as one small array of addresses and shapes, written when something moves, and a kernel makes views of it. Whoever
holds the addresses holds the arrays, too (:class:`Handles`): an address never outlives its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined] # missing in the stubs
from numba.core import cgutils
from numba.extending import intrinsic

from speculant_graph.draft.calibration import CalibrationArrays, Mixture
from speculant_graph.draft.history import HistoryArrays
from speculant_graph.draft.sources import Entries, GraphArrays, RecycledArrays, Sources
from speculant_graph.draft.workspace import Tree, Workspace
from speculant_graph.graph.compiled import Integer, inlined
from speculant_graph.graph.layout import Int64Array


class Handles:
    """Addresses and shapes of arrays, and the arrays."""

    def __init__(self, *bundles: Any) -> None:
        """Take the arrays of named tuples, nested or not, in order."""
        self.arrays = list(_arrays(bundles))
        """The arrays, in order."""
        self.values: Int64Array = np.array(
            [(array.ctypes.data, array.shape[0], array.size // max(1, array.shape[0])) for array in self.arrays],
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
    return carray(_pointer(handles[3 * index]), (handles[3 * index + 1],), kind)  # type: ignore[call-arg]


@inlined
def _grid(handles: Int64Array, index: Integer, kind: Any) -> Any:
    shape = handles[3 * index + 1], handles[3 * index + 2]
    return carray(_pointer(handles[3 * index]), shape, kind)  # type: ignore[call-arg]


@inlined
def _open_history(handles: Int64Array, first: Integer) -> Any:
    return HistoryArrays(
        tokens=_line(handles, first, np.int32),
        chains=_grid(handles, first + 1, np.int32),
        heads=_grid(handles, first + 2, np.int64),
        lengths=_line(handles, first + 3, np.int64),
        bounds=_line(handles, first + 4, np.int64),
    )


@inlined
def _open_recycled(handles: Int64Array, first: Integer) -> Any:
    return RecycledArrays(
        keys=_line(handles, first, np.int64),
        rows=_grid(handles, first + 1, np.int32),
    )


@inlined
def _open_graph(handles: Int64Array, first: Integer) -> Any:
    return GraphArrays(
        words=_line(handles, first, np.uint32),
        table=_grid(handles, first + 1, np.int64),
        row_keys=_line(handles, first + 2, np.int64),
        row_tokens=_grid(handles, first + 3, np.int32),
        row_counts=_grid(handles, first + 4, np.int64),
    )


@inlined
def _open_calibration(handles: Int64Array, first: Integer) -> Any:
    return CalibrationArrays(
        escapes=_grid(handles, first, np.float64),
        agreements=_grid(handles, first + 1, np.float64),
    )


@inlined
def _open_tree(handles: Int64Array, first: Integer) -> Any:
    return Tree(
        tokens=_line(handles, first, np.int64),
        parents=_line(handles, first + 1, np.int64),
        probabilities=_line(handles, first + 2, np.float64),
        depths=_line(handles, first + 3, np.int64),
        states=_grid(handles, first + 4, np.int64),
        window=_line(handles, first + 5, np.int64),
        heap=_line(handles, first + 6, np.int64),
        child_tokens=_line(handles, first + 7, np.int64),
        child_parents=_line(handles, first + 8, np.int64),
        child_probabilities=_line(handles, first + 9, np.float64),
    )


@inlined
def _open_entries(handles: Int64Array, first: Integer) -> Any:
    return Entries(
        size=_line(handles, first, np.int64),
        source=_line(handles, first + 1, np.int64),
        length=_line(handles, first + 2, np.int64),
        total=_line(handles, first + 3, np.int64),
        distinct=_line(handles, first + 4, np.int64),
        node=_line(handles, first + 5, np.int64),
        start=_line(handles, first + 6, np.int64),
        tokens=_line(handles, first + 7, np.int64),
        counts=_line(handles, first + 8, np.int64),
        places=_grid(handles, first + 9, np.int64),
        tally=_grid(handles, first + 10, np.int64),
    )


@inlined
def _open_mixture(handles: Int64Array, first: Integer) -> Any:
    return Mixture(
        size=_line(handles, first, np.int64),
        tokens=_line(handles, first + 1, np.int64),
        probabilities=_line(handles, first + 2, np.float64),
        supports=_line(handles, first + 3, np.int64),
        slots=_line(handles, first + 4, np.int64),
        shares=_grid(handles, first + 5, np.float64),
    )


# Handles of a drafter: graph (5), calibration (2), tree (10), entries (11), mixture.
@inlined
def open_calibration(drafter: Int64Array) -> Any:
    """Return the :class:`CalibrationArrays` of a drafter."""
    return _open_calibration(drafter, 5)


@inlined
def open_workspace(drafter: Int64Array) -> Any:
    """Return the :class:`Workspace` of a drafter."""
    return Workspace(_open_tree(drafter, 7), _open_entries(drafter, 17), _open_mixture(drafter, 28))


# Handles of a sequence: session (5), learned (5), recycled (2), enabled, state, costs.
@inlined
def open_sources(drafter: Int64Array, sequence: Int64Array) -> Any:
    """Return the :class:`Sources` of a sequence."""
    return Sources(
        _open_graph(drafter, 0),
        _open_history(sequence, 0),
        _open_history(sequence, 5),
        _open_recycled(sequence, 10),
        _line(sequence, 12, np.int64),
    )


@inlined
def open_state(sequence: Int64Array) -> Any:
    """Return (order, record) of the graph at the end of a sequence."""
    return _line(sequence, 13, np.int64)


@inlined
def open_costs(sequence: Int64Array) -> Any:
    """Return the costs of verifying, empty if it is free."""
    return _line(sequence, 14, np.float64)


# Handles of what is a sequence's own: session (5), state.
@inlined
def open_own_history(own: Int64Array) -> Any:
    """Return the :class:`HistoryArrays` of a sequence's own tokens."""
    return _open_history(own, 0)


@inlined
def open_own_state(own: Int64Array) -> Any:
    """Return (order, record) of the graph at the end of a sequence."""
    return _line(own, 5, np.int64)


NUM_OWN_HANDLES = 18
"""Entries of the handles of what is a sequence's own."""
