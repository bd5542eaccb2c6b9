"""The outcome of a check, and the one function where errors become one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from speculant_graph.errors import SpeculantError

Status = Literal["ok", "warn", "fail", "skip"]
"""``warn``: it works, but not as well as it could. ``skip``: not looked at, and the detail is the reason."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check."""

    check: str
    """What was looked at."""
    status: Status
    """How it is."""
    detail: str
    """What was found; further lines are shown below the first."""
    fix: str = ""
    """What to do about it, where the detail does not end in it."""


def guarded(check: str, look: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    """Yield results; an error becomes the last one.

    Args:
        check: what an error is about.
        look: yields the results.
    """
    try:
        yield from look()
    except SpeculantError as error:
        yield CheckResult(check, "fail", error.message, error.fix)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:  # a file of an unexpected form
        yield CheckResult(check, "fail", f"{type(error).__name__}: {error}".replace("\n", " "), f"check the {check}")
