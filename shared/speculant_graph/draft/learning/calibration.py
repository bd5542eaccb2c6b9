"""How reliable each kind of context is, as bytes; ``native/calibration.hpp`` defines the tables."""

from __future__ import annotations

import io

import numpy as np

from speculant_graph._core import Calibration
from speculant_graph.errors import ConfigError

_MOST_VISITS = 1.01 / (1.0 - 0.9995)
"""More than any row can have: a visit counts for that much less after one more."""
_FORMAT = 1


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
