"""What is learned in tables, as bytes: how reliable each kind of context is, and the target's own top tokens.

``native/calibration.hpp`` and ``native/target_rows.hpp`` define them.
"""

from __future__ import annotations

import io

import numpy as np

from speculant_graph._core import ROW_DEPTH, ROW_WIDTH, Calibration, TargetRows
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import MAX_VOCABULARY

_FORMAT = 1
_MOST_VISITS = 1.01 / (1.0 - 0.9995)
"""More than any row can have: a visit counts for that much less after one more."""


def save_calibration(calibration: Calibration) -> bytes:
    """Return the tables as bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, format=_FORMAT, escapes=calibration.weights, agreements=calibration.bins)
    return buffer.getvalue()


def load_calibration(saved: bytes) -> Calibration:
    """Make the tables of :func:`save_calibration` again.

    Raises:
        ConfigError: the bytes are not such tables, or those of another release.
    """
    calibration = Calibration()
    try:
        with np.load(io.BytesIO(saved), allow_pickle=False) as content:
            if int(content["format"]) != _FORMAT:
                raise ValueError("format")
            for name, table in (("escapes", calibration.weights), ("agreements", calibration.bins)):
                values = content[name]
                if values.shape != table.shape or values.dtype != table.dtype:
                    raise ValueError(name)
                visits = values[:, :1]
                # Rounding may lift a sum of probabilities a little above the visits.
                if not ((visits <= _MOST_VISITS) & (values >= 0) & (values <= visits * (1.0 + 1e-9))).all():
                    raise ValueError(name)
                table[:] = values
    except Exception as error:
        raise ConfigError("the saved calibration is damaged or of another release; delete it to start anew") from error
    return calibration


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
