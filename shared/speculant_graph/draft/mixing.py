"""Weights of the mixer, a small network that computes the final probabilities of drafted tokens.

``native/mixer/mixer.hpp`` describes the network. The package contains the weights as 32-bit floats in ``mixer.bin``,
which ``tests/models/train_mixer.py`` trains and writes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import Calibration

WEIGHTS_FILE = Path(__file__).with_name("mixer.bin")
"""File with the mixer's weights."""


@cache
def mixer_weights() -> NDArray[np.float32]:
    """Return the mixer's weights."""
    return np.frombuffer(WEIGHTS_FILE.read_bytes(), "<f4").astype(np.float32)


def first_calibration() -> Calibration:
    """Return untrained calibration tables, with the mixer's weights."""
    return Calibration(mixer_weights())
