"""What a check found, and the one place where errors become findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from speculant_graph.errors import SpeculantError
from speculant_graph.types import Fingerprint

Status = Literal["ok", "warn", "fail", "skip"]
"""``warn``: it works, but not as well as it could. ``skip``: not looked at, and the detail says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    """What was looked at."""
    status: Status
    """How it is."""
    detail: str
    """What was found."""
    remedy: str = ""
    """What to do about it; one line."""


@dataclass(slots=True)
class Identities:
    """Tokenizers that were met, which must be one and the same."""

    found: list[tuple[str, Fingerprint]] = field(default_factory=list)
    """Who has it, and which."""

    def add(self, owner: str, fingerprint: Fingerprint) -> None:
        """Note a tokenizer."""
        self.found.append((owner, fingerprint))


def guarded(check: str, remedy: str, findings: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield findings; an error becomes the last one.

    Args:
        check: what an error is about.
        remedy: what to do about errors that do not say it themselves.
        findings: looks.
    """
    try:
        yield from findings()
    except (SpeculantError, OSError) as error:
        yield failed(check, remedy, error)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # a file or an answer of an unexpected form
        yield Finding(check, "fail", f"{type(error).__name__}: {error}".replace("\n", " "), remedy)


def failed(check: str, remedy: str, error: Exception) -> Finding:
    """Return an error as a finding: what its message says to do, behind the last semicolon, is the remedy.

    Args:
        check: what it is about.
        remedy: what to do if it does not say so.
        error: the error.
    """
    what, _, rest = str(error).replace("\n", " ").rpartition("; ")
    return Finding(check, "fail", what, rest) if what else Finding(check, "fail", rest, remedy)


def compare_tokenizers(identities: Identities) -> Iterator[Finding]:
    """Say whether all tokenizers that were met are the same."""
    owners = ", ".join(owner for owner, _ in identities.found)
    if len(identities.found) < 2:
        only = f"only {owners} was looked at" if owners else "name a model, a graph or a drafter to compare"
        yield Finding("tokenizers", "skip", only)
        return
    first_owner, first = identities.found[0]
    others = [(owner, one) for owner, one in identities.found if one.sha256 != first.sha256]
    if not others:
        yield Finding("tokenizers", "ok", f"the same for {owners} ({first.sha256[:12]})")
        return
    owner, other = others[0]
    yield Finding(
        "tokenizers",
        "fail",
        f"{first_owner} has '{first.name}' ({first.sha256[:12]}), {owner} has '{other.name}' ({other.sha256[:12]})",
        f"build the graph again with --tokenizer {first.name}",
    )
