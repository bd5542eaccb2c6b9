"""Versions, against the distribution's requirements, and settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

from packaging.requirements import Requirement

from speculant_graph.cli.checks.result import CheckResult
from speculant_graph.cli.config import AllSettings
from speculant_graph.settings import DEFAULT_FILE, config_file, load_settings
from speculant_graph.version import VERSION

_DISTRIBUTION = "speculant-graph"


def check_versions() -> Iterator[CheckResult]:
    """Name the versions and the extras, and libraries of the base or of an extra that have another version than needed.

    An extra of which a library is missing is one that was not asked for.
    """
    described = metadata(_DISTRIBUTION)
    requirements = [Requirement(line) for line in described.get_all("Requires-Dist") or ()]
    yield CheckResult("versions", "ok", f"{_DISTRIBUTION} {VERSION}, Python {platform.python_version()}")
    complete = []
    for extra in ("", *(name for name in described.get_all("Provides-Extra") or () if name != "all")):
        installed = [(each, _installed(each.name)) for each in requirements if _is_of(each, extra)]
        wrong = [f"{each.name} is {found}, needs {each.specifier}" for each, found in installed
                 if found and not each.specifier.contains(found, prereleases=True)]  # fmt: skip
        if wrong:
            target = f"{_DISTRIBUTION}[{extra}]" if extra else _DISTRIBUTION
            yield CheckResult("libraries", "warn" if extra else "fail", ", ".join(wrong), f'pip install -U "{target}"')
        elif extra and all(found for _, found in installed):
            complete.append(extra)
    yield CheckResult("extras", "ok", ", ".join(complete) or "none")


def _is_of(requirement: Requirement, extra: str) -> bool:
    """Return whether it is the extra that needs a library; other extras that it names are looked at themselves."""
    if requirement.marker is None:
        return not extra
    return requirement.name != _DISTRIBUTION and requirement.marker.evaluate({"extra": extra})


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def check_settings(named: Path | None) -> Iterator[CheckResult]:
    """Check that the settings file and the environment hold for every section.

    Args:
        named: the file on the command line.

    Raises:
        ConfigError: they do not.
    """
    path = config_file([] if named is None else [f"--config={named}"])
    load_settings(AllSettings, "doctor", [] if path is None else [f"--config={path}"])
    variables = sum(name.upper().startswith("SPECULANT_") for name in os.environ)
    shown = f"{path}" if path else f"no {DEFAULT_FILE} here: defaults"
    yield CheckResult("settings", "ok", f"{shown}, environment variables: {variables}")
