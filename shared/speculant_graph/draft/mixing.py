"""The mixer's weights, which have the last word on drafted tokens; ``native/mixer/mixer.hpp`` says what they do.

They come with the package: ``mixer.bin``, 32-bit floats, which ``tests/models/train_mixer.py`` trains and writes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import Calibration

WEIGHTS_FILE = Path(__file__).with_name("mixer.bin")
"""Where they are."""


@cache
def mixer_weights() -> NDArray[np.float32]:
    """Return the weights."""
    return np.frombuffer(WEIGHTS_FILE.read_bytes(), "<f4").astype(np.float32)


def first_calibration() -> Calibration:
    """Return tables that know nothing yet, with the mixer."""
    return Calibration(mixer_weights())
