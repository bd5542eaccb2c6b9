"""Explains missing optional modules with the command that installs them; other import errors are bugs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ModuleNotFoundError):
    """An optional module is missing; the message has the command that installs it."""


@contextmanager
def needed_for(purpose: str, extra: str) -> Iterator[None]:
    """Turn a failing import inside of the block into an error that names the missing extra.

    Args:
        purpose: the use of the module, such as "reading PDF files".
        extra: the extra that installs the needed modules.

    Raises:
        MissingExtraError: an optional module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if missing_extra(error, extra) is None:
            raise
        raise MissingExtraError(f'{purpose} needs: pip install "speculant-graph[{extra}]"', name=error.name) from error


def missing_extra(error: ImportError, extra: str) -> str | None:
    """Explain an import error that installing an extra would fix.

    Args:
        error: the error that the import raised.
        extra: the extra that installs all modules that the importing code needs.

    Returns:
        One line with the command to run; None if the missing module is not optional, because the error is then a bug.
    """
    if isinstance(error, MissingExtraError):  # its code knows better which extra it needs
        return str(error)
    module = (error.name or "").split(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not module or module.startswith("speculant_"):
        return None
    return f'{module} is not installed; run: pip install "speculant-graph[{extra}]"'
