"""``speculant doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from speculant_graph.cli.checks.finding import Finding, Identities, Status, compare_tokenizers, failed, guarded
from speculant_graph.cli.terminal import printable
from speculant_graph.config import ClientConfig, DraftConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings

_VERIFIER = "speculant_verifier"
"""Looks at torch and the model: named as text, as in ``main``."""

_MEND_SETTINGS = "correct it; speculant config show prints what holds"
_COLORS: dict[Status, str] = {"ok": "32", "warn": "33", "fail": "1;31", "skip": "2"}


class DoctorSettings(CommandSettings):
    """Check this installation, and what is named: a model, a graph, a drafter, a verifier.

    Every problem comes with the line that mends it. What is not named is skipped. The exit status is 1 if a check
    failed.
    """

    graph_path: Path | None = None
    """Check this graph file."""
    verify: bool = False
    """Read all of the graph file, and load the model."""
    admin_address: str = ""
    """List the graphs of the drafter whose admin service is at this address."""
    verifier_address: str = ""
    """Check the verifier that serves gRPC at this address; --verifier for short."""
    url: str = ""
    """Check the verifier that serves HTTP here, such as http://127.0.0.1:8000/v1."""
    api_key: SecretStr | None = None
    """Key for --url. Better in the environment (SPECULANT_API_KEY), where other users don't see it."""
    json_output: bool = False
    """Print one JSON object instead of a table."""
    color: Literal["auto", "never", "always"] = "auto"
    """Colour the table: 'auto' does on a terminal, unless NO_COLOR is set."""
    verifier: VerifierConfig = VerifierConfig()
    """The model, checked if it is named."""
    draft: DraftConfig = DraftConfig()
    """How drafts are asked for."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecars, checked if they are named; credentials hold for --verifier, too."""


def run(arguments: Sequence[str]) -> int:
    """Check; return 1 if anything failed.

    Raises:
        ConfigError: a flag or a variable is wrong.
    """
    settings, problem = _load([_spelled_out(argument) for argument in arguments])
    is_colored = settings.color == "always" or (
        settings.color == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    )
    findings: list[Finding] = []
    for finding in _check(settings, problem):
        findings.append(finding)
        if not settings.json_output:
            sys.stdout.write(_row(finding, is_colored=is_colored))
            sys.stdout.flush()
    has_failed = any(finding.status == "fail" for finding in findings)
    if settings.json_output:
        rows = [
            {"check": each.check, "status": each.status, "detail": each.detail, "remedy": each.remedy or None}
            for each in findings
        ]
        sys.stdout.write(json.dumps({"healthy": not has_failed, "checks": rows}) + "\n")
    else:
        sys.stdout.write(_conclusion(findings))
    return int(has_failed)


def _spelled_out(argument: str) -> str:
    """Return an argument with --verifier as its long form, as the short one is also the name of a section."""
    name, equals, value = argument.partition("=")
    return f"--verifier-address{equals}{value}" if name == "--verifier" else argument


def _load(arguments: Sequence[str]) -> tuple[DoctorSettings, ConfigError | None]:
    """Return settings; where the file alone is wrong, those without it, and what is wrong."""
    try:
        return load_settings(DoctorSettings, "doctor", arguments), None
    except ConfigError as error:
        try:
            return load_settings(DoctorSettings, "doctor", [*arguments, f"--config={os.devnull}"]), error
        except ConfigError:
            raise error from None


def _check(settings: DoctorSettings, problem: ConfigError | None) -> Iterator[Finding]:
    from speculant_graph.cli.checks.drafter import check_drafters, check_graphs
    from speculant_graph.cli.checks.files import check_graph, check_settings
    from speculant_graph.cli.checks.libraries import check_libraries
    from speculant_graph.cli.checks.machine import check_machine
    from speculant_graph.cli.checks.verifier import check_url, check_verifier

    identities = Identities()
    api_key = settings.api_key.get_secret_value() if settings.api_key else ""
    yield from check_libraries()
    yield from check_machine()
    if problem is not None:
        yield failed("settings", _MEND_SETTINGS, problem)
    else:
        yield from guarded("settings", _MEND_SETTINGS, lambda: check_settings(settings.config))
    yield from _check_model(settings, identities)
    yield from guarded(
        "graph",
        "check the path",
        lambda: check_graph(settings.graph_path, verify=settings.verify, identities=identities),
    )
    yield from guarded(
        "drafter", "check --address", lambda: check_drafters(settings.client, settings.draft, identities)
    )
    yield from guarded(
        "drafter graphs", "check --admin-address", lambda: check_graphs(settings.admin_address, settings.client)
    )
    yield from compare_tokenizers(identities)
    yield from guarded(
        "verifier", "check --verifier", lambda: check_verifier(settings.verifier_address, settings.client)
    )
    yield from guarded("http", "check --url", lambda: check_url(settings.url, api_key))


def _check_model(settings: DoctorSettings, identities: Identities) -> Iterator[Finding]:
    is_named = "model_name" in settings.verifier.model_fields_set
    try:
        devices = importlib.import_module(f"{_VERIFIER}.checks.devices")
    except ImportError as error:
        missing = f"{error.name} is not installed"
        yield Finding("torch", "skip", missing)
        if is_named:
            yield Finding("model", "fail", missing, 'pip install "speculant-graph[verifier]"')
        else:
            yield Finding("model", "skip", missing)
        return
    yield from guarded("torch", "install torch again", devices.check_torch)
    if not is_named:
        yield Finding("model", "skip", "not named; --model NAME or FOLDER")
        return
    yield from guarded(
        "model",
        "check the name or the folder, and that it is complete",
        lambda: _look_at_model(settings, identities),
    )


def _look_at_model(settings: DoctorSettings, identities: Identities) -> Iterator[Finding]:
    importlib.import_module(f"{_VERIFIER}.sources").require_sources(settings.verifier)  # says at once what is mistyped
    model = importlib.import_module(f"{_VERIFIER}.checks.model")
    yield from model.check_model(settings.verifier, load=settings.verify, identities=identities)


def _row(finding: Finding, *, is_colored: bool) -> str:
    status = f"{finding.status:<4}"
    if is_colored:
        status = f"\x1b[{_COLORS[finding.status]}m{status}\x1b[0m"
    lines = [f"{status}  {finding.check:<16}  {printable(finding.detail)}"]
    if finding.remedy:
        lines.append(f"{'':<24}-> {printable(finding.remedy)}")
    return "".join(f"{line}\n" for line in lines)


def _conclusion(findings: Sequence[Finding]) -> str:
    counts = {status: sum(finding.status == status for finding in findings) for status in _COLORS}
    shown = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"\n{len(findings)} checks: {shown}\n"
