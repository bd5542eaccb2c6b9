"""``speculant doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from speculant_graph.cli.checks import CheckResult, Status, check_drafters, check_settings, guarded
from speculant_graph.cli.terminal import printable
from speculant_graph.config import ClientConfig, DraftConfig, VerifierConfig
from speculant_graph.settings import CommandSettings, load_settings
from speculant_graph.types import Fingerprint
from speculant_graph.version import VERSION

_VERIFIER = "speculant_verifier"
"""Looks at torch and the model: named as text, as in ``main``."""

_COLORS: dict[Status, str] = {"ok": "32", "warn": "33", "fail": "1;31", "skip": "2"}


class DoctorSettings(CommandSettings):
    """Check this installation, and what is named: a model, a graph, a drafter.

    Every problem comes with what to do about it. What is not named is skipped. The exit status is 1 if a check failed.
    """

    graph_path: Path | None = None
    """Check this graph file."""
    verify: bool = False
    """Read all of the graph file, and load the model."""
    json_output: bool = False
    """Print one JSON object instead of a table."""
    verifier: VerifierConfig = VerifierConfig()
    """The model, checked if it is named."""
    draft: DraftConfig = DraftConfig()
    """How drafts are asked for."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecars, checked if they are named."""


def run(arguments: Sequence[str]) -> int:
    """Check; return 1 if anything failed.

    Raises:
        ConfigError: a setting that it needs itself is wrong.
    """
    settings = load_settings(DoctorSettings, "doctor", arguments)
    is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    results: list[CheckResult] = []
    for result in _check(settings):
        results.append(result)
        if not settings.json_output:
            sys.stdout.write(_row(result, is_colored=is_colored))
            sys.stdout.flush()
    has_failed = any(result.status == "fail" for result in results)
    if settings.json_output:
        rows = [
            {"check": each.check, "status": each.status, "detail": each.detail, "fix": each.fix or None}
            for each in results
        ]
        sys.stdout.write(json.dumps({"healthy": not has_failed, "checks": rows}) + "\n")
    return int(has_failed)


def _check(settings: DoctorSettings) -> Iterator[CheckResult]:
    tokenizers: dict[str, Fingerprint] = {}
    yield CheckResult("versions", "ok", f"speculant-graph {VERSION}, Python {platform.python_version()}")
    yield from guarded("settings", lambda: check_settings(settings.config))
    yield from _check_model(settings, tokenizers)
    yield from guarded("graph", lambda: _check_graph(settings, tokenizers))
    yield from guarded("drafter", lambda: check_drafters(settings.client, settings.draft, tokenizers))
    yield _compare(tokenizers)


def _check_model(settings: DoctorSettings, tokenizers: dict[str, Fingerprint]) -> Iterator[CheckResult]:
    is_named = "model_name" in settings.verifier.model_fields_set
    try:
        checks = importlib.import_module(f"{_VERIFIER}.checks")
    except ImportError as error:
        status: Status = "fail" if is_named else "skip"
        yield CheckResult("model", status, f"{error.name} is not installed", 'pip install "speculant-graph[verifier]"')
        return
    yield from guarded("gpu", checks.check_devices)
    if is_named:
        yield from guarded("model", lambda: _look_at_model(settings, tokenizers))
    else:
        yield CheckResult("model", "skip", "not named; --model NAME or FOLDER")


def _look_at_model(settings: DoctorSettings, tokenizers: dict[str, Fingerprint]) -> Iterator[CheckResult]:
    importlib.import_module(f"{_VERIFIER}.sources").require_sources(settings.verifier)  # at once, what is mistyped
    checks = importlib.import_module(f"{_VERIFIER}.checks")
    yield from checks.check_model(settings.verifier, load=settings.verify, tokenizers=tokenizers)


def _check_graph(settings: DoctorSettings, tokenizers: dict[str, Fingerprint]) -> Iterator[CheckResult]:
    path = settings.graph_path
    if path is None:
        yield CheckResult("graph", "skip", "not named; --graph-path FILE")
        return
    from speculant_graph.cli.graphs import sentence_of
    from speculant_graph.graph.ngrams import NgramGraph

    graph = NgramGraph.load(path, complete=settings.verify)
    tokenizers["the graph"] = graph.metadata.tokenizer
    checked = "all of it checked" if settings.verify else "description checked; --verify reads all"
    yield CheckResult("graph", "ok", f"{sentence_of(path, graph)} ({checked})")


def _compare(tokenizers: Mapping[str, Fingerprint]) -> CheckResult:
    """Return whether all tokenizers that were met are the same."""
    owners = ", ".join(tokenizers)
    if len(tokenizers) < 2:
        only = f"only {owners} was looked at" if owners else "name a model, a graph or a drafter to compare"
        return CheckResult("tokenizers", "skip", only)
    first = next(iter(tokenizers.values()))
    if all(one.sha256 == first.sha256 for one in tokenizers.values()):
        return CheckResult("tokenizers", "ok", f"the same for {owners} ({first.sha256[:12]})")
    shown = ", ".join(f"{owner} has '{one.name}' ({one.sha256[:12]})" for owner, one in tokenizers.items())
    return CheckResult("tokenizers", "fail", shown, f"build the graph again with --tokenizer {first.name}")


def _row(result: CheckResult, *, is_colored: bool) -> str:
    status = f"{result.status:<4}"
    if is_colored:
        status = f"\x1b[{_COLORS[result.status]}m{status}\x1b[0m"
    first, *more = [printable(line) for line in result.detail.splitlines()]
    lines = [f"{status}  {result.check:<10}  {first}", *(f"{'':<18}{line}" for line in more)]
    if result.fix:
        lines.append(f"{'':<18}-> {printable(result.fix)}")
    return "".join(f"{line}\n" for line in lines)
