"""Controls the progress bars that transformers shows while it loads a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_DELAY_S = 2.0
"""Delay before a progress bar is shown, in seconds."""


def quiet_transformers() -> None:
    """Suppress the progress bars and advice of transformers and accelerate; errors are still raised."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)


@contextmanager
def patient_progress() -> Iterator[None]:
    """Show transformers' progress bars only on a terminal, and only if loading takes long."""
    from transformers.utils import logging as bars

    def make(factory: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return factory(*arguments, **{"disable": None, "delay": _DELAY_S} | options)

    before = bars.set_tqdm_hook(make)
    try:
        yield
    finally:
        bars.set_tqdm_hook(before)
