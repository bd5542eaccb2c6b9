"""Python and libraries, against what the distribution says it needs."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from speculant_graph.cli.checks.finding import Finding
from speculant_graph.version import VERSION

_DISTRIBUTION = "speculant-graph"


def check_libraries() -> Iterator[Finding]:
    """Check Python, what is always needed, and what of the extras is installed."""
    described = metadata(_DISTRIBUTION)
    yield Finding("speculant-graph", "ok", VERSION)
    needed = described["Requires-Python"] or ""
    python = platform.python_version()
    if SpecifierSet(needed).contains(python, prereleases=True):
        yield Finding("python", "ok", f"{python} (needs {needed})")
    else:
        yield Finding("python", "fail", f"{python}, but {needed} is needed", "make an environment with a newer Python")
    requirements = [Requirement(line) for line in described.get_all("Requires-Dist") or ()]
    yield _check_always([each for each in requirements if _applies(each, "")])
    extras = described.get_all("Provides-Extra") or []
    yield from _check_extras({name: _of_extra(requirements, name) for name in extras if name != "all"})


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _of_extra(requirements: list[Requirement], extra: str) -> list[Requirement]:
    """Return what an extra adds; other extras that it names are checked as themselves."""
    return [
        each for each in requirements if _applies(each, extra) and not _applies(each, "") and each.name != _DISTRIBUTION
    ]


def _check_always(requirements: list[Requirement]) -> Finding:
    problems = [problem for each in requirements if (problem := _problem(each))]
    if problems:
        return Finding("libraries", "fail", ", ".join(problems), f"pip install --upgrade {_DISTRIBUTION}")
    return Finding("libraries", "ok", f"all {len(requirements)} that are always needed")


def _check_extras(extras: dict[str, list[Requirement]]) -> Iterator[Finding]:
    complete, absent = [], []
    for extra, requirements in extras.items():
        problems = [problem for each in requirements if (problem := _problem(each))]
        old = [problem for problem in problems if "not installed" not in problem]
        if not problems:
            complete.append(extra)
        elif old:
            remedy = f'pip install --upgrade "{_DISTRIBUTION}[{extra}]"'
            yield Finding(f"extra [{extra}]", "warn", ", ".join(old), remedy)
        else:
            absent.append(extra)
    shown = [f"installed: {', '.join(complete) or 'none'}"] + ([f"not: {', '.join(absent)}"] if absent else [])
    yield Finding("extras", "ok", "; ".join(shown))


def _problem(requirement: Requirement) -> str:
    """Return why a library is not what is needed; empty if it is."""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"{requirement.name} is {installed}, needs {requirement.specifier}"
