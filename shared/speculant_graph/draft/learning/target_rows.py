"""The target's own top tokens, as bytes; ``native/target_rows.hpp`` defines the table."""

from __future__ import annotations

import io

import numpy as np

from speculant_graph._core import ROW_DEPTH, ROW_WIDTH, TargetRows
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import MAX_VOCABULARY

_FORMAT = 1


def save_rows(table: TargetRows) -> bytes:
    """Return the rows as bytes."""
    slots, keys, rows = table.slots()
    buffer = io.BytesIO()
    np.savez(buffer, format=_FORMAT, slots=slots, keys=keys, rows=rows.reshape(-1, ROW_DEPTH * ROW_WIDTH))
    return buffer.getvalue()


def load_rows(saved: bytes) -> TargetRows:
    """Make the rows of :func:`save_rows` again.

    Raises:
        ConfigError: the bytes are not such rows, or those of another release.
    """
    table = TargetRows()
    try:
        with np.load(io.BytesIO(saved), allow_pickle=False) as content:
            version, slots, keys, rows = (content[name] for name in ("format", "slots", "keys", "rows"))
        if int(version) != _FORMAT or rows.shape != (keys.size, ROW_DEPTH * ROW_WIDTH):
            raise ValueError("format")
        if keys.min(initial=0) < 0 or rows.min(initial=-1) < -1 or rows.max(initial=-1) >= MAX_VOCABULARY:
            raise ValueError("rows")
        table.restore(slots, keys, rows.astype(np.int32).reshape(-1))
    except Exception as error:
        raise ConfigError("the saved rows are damaged or of another release; they will be learned again") from error
    return table
