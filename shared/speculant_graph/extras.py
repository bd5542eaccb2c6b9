"""Optional modules: a missing one is reported as the command that installs it, any other import error stays a bug."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed_for(purpose: str, extra: str) -> Iterator[None]:
    """Explain a failing import inside of the block as the extra that is not installed.

    Args:
        purpose: what the module is needed for, such as "reading PDF files".
        extra: the extra that brings it.

    Raises:
        ModuleNotFoundError: an optional module is missing; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if missing_extra(error, extra) is None:
            raise
        raise ModuleNotFoundError(
            f'{purpose} needs: pip install "speculant-graph[{extra}]"', name=error.name
        ) from error


def missing_extra(error: ImportError, extra: str) -> str | None:
    """Explain an import error that installing an extra would cure.

    Args:
        error: what an import raised.
        extra: the extra that brings all that the importing part needs.

    Returns:
        One line with the command to type; None if the module is not an optional one, so that the error is a bug.
    """
    module = (error.name or "").split(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not module or module.startswith("speculant_"):
        return None
    return f'{module} is not installed; run: pip install "speculant-graph[{extra}]"'
