"""``speculant doctor``: checks the installation and proposes fixes."""

from __future__ import annotations

import importlib
import os
import platform
import random
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from speculant_graph.config import ClientConfig, DraftConfig, VerifierConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.file_names import json_text
from speculant_graph.settings import DEFAULT_FILE, AllSettings, CommandSettings, GraphPaths, config_file, load_settings
from speculant_graph.terminal import printable
from speculant_graph.types import Fingerprint, SequenceStep
from speculant_graph.version import VERSION

if TYPE_CHECKING:
    from speculant_graph.rpc.channel import Endpoint

_VERIFIER = "speculant_verifier"
"""Name of the package that checks torch and the model. The package may not be installed, so it is imported by name."""
MODEL, GRAPH = "the model", "the graph"
"""Names of tokenizers' owners in messages; a sidecar is named by its address."""
_NUM_DRAFTS = 200
"""Number of drafts that the doctor requests to measure their latency."""
_PROMPT_TOKENS = 64
_PATIENCE_S = 5.0

Status = Literal["ok", "warn", "fail", "skip"]
"""``warn`` means that the checked subject works, but not as well as it could. ``skip`` means that the subject was not
checked, for the reason in ``detail``."""
_COLORS: dict[Status, str] = {"ok": "32", "warn": "33", "fail": "1;31", "skip": "2"}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking one part of the installation."""

    check: str
    """Name of the checked subject, such as ``graph``."""
    status: Status
    """The outcome."""
    detail: str
    """Description of the finding, in one or more lines."""
    fix: str = ""
    """The proposed fix; empty if no fix is needed or ``detail`` contains it."""


class DoctorSettings(CommandSettings):
    """Check this installation, and the given model, graph and drafter.

    Every problem comes with its fix. The doctor skips the model, the graph or the drafter if it is not given. The exit
    status is 1 if a check failed.
    """

    graph_path: GraphPaths = []  # noqa: RUF012 - every instance gets its own copy
    """Graph file to check, or up to four files that are used as layers."""
    verify: bool = False
    """Check more thoroughly: read the whole graph file, and load the model."""
    vllm: bool = False
    """Report which of vLLM's model runners gets drafts; the command must run in vLLM's own environment."""
    json_output: bool = False
    """Print one JSON object instead of a table."""
    verifier: VerifierConfig = VerifierConfig()
    """The model to check, if any."""
    draft: DraftConfig = DraftConfig()
    """Drafting options for the test drafts that the drafter check requests."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecars to check, if any."""


def run(arguments: Sequence[str]) -> int:
    """Run all checks; return 1 if any failed.

    Raises:
        ConfigError: a setting of the command itself is wrong.
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
        sys.stdout.write(json_text({"healthy": not has_failed, "checks": rows}) + "\n")
    return int(has_failed)


def _check(settings: DoctorSettings) -> Iterator[CheckResult]:
    tokenizers: dict[str, Fingerprint] = {}
    yield CheckResult("versions", "ok", f"speculant-graph {VERSION}, Python {platform.python_version()}")
    yield from _guarded("settings", lambda: _check_settings(settings.config))
    yield from _check_model(settings, tokenizers)
    yield from _guarded("graph", lambda: _check_graph(settings, tokenizers))
    yield from _guarded("drafter", lambda: _check_drafters(settings.client, settings.draft, tokenizers))
    yield _compare(tokenizers)
    if settings.vllm:
        yield from _guarded("vllm", _check_vllm)


def _check_vllm() -> Iterator[CheckResult]:
    """Check which model runner vLLM chooses in this environment; the model's influence is not considered."""
    try:
        vllm, config = importlib.import_module("vllm"), importlib.import_module("vllm.config")
    except ImportError as error:
        fix = "run this in vLLM's own environment, with speculant-graph[vllm] installed"
        yield CheckResult("vllm", "fail", f"vLLM can't be imported ({error})", fix)
        return
    from speculant_graph.engines.vllm_v2 import problem_with_v2

    version, allowed = getattr(vllm, "__version__", "of unknown version"), os.environ.get("VLLM_PLUGINS")
    fix = "install Triton, and leave VLLM_USE_V2_MODEL_RUNNER unset"
    if "speculant" not in {each.name for each in entry_points(group="vllm.general_plugins")}:
        problem, fix = "the plug-in is not installed", "install speculant-graph[vllm] in this environment"
    elif allowed is not None and "speculant" not in allowed.split(","):
        problem, fix = f"VLLM_PLUGINS is {allowed}", "add speculant to it"
    else:
        try:
            problem = problem_with_v2(config.VllmConfig())
        except ValueError as error:  # vLLM refuses to start
            yield CheckResult("vllm", "fail", f"vLLM {version} does not start: {str(error).splitlines()[-1]}", fix)
            return
    if problem:
        found = f"vLLM {version} drafts with its V1 model runner, without asynchronous scheduling: {problem}"
        yield CheckResult("vllm", "warn", found, fix)
        return
    yield CheckResult("vllm", "ok", f"vLLM {version} drafts with its V2 model runner, if the model allows it")


def _check_model(settings: DoctorSettings, tokenizers: dict[str, Fingerprint]) -> Iterator[CheckResult]:
    is_named = "model_name" in settings.verifier.model_fields_set
    try:
        checks = importlib.import_module(f"{_VERIFIER}.cli.doctor_checks")
    except ImportError as error:
        status: Status = "fail" if is_named else "skip"
        yield CheckResult("model", status, f"{error.name} is not installed", 'pip install "speculant-graph[verifier]"')
        return
    yield from _guarded("gpu", checks.check_devices)
    if is_named:
        yield from _guarded("model", lambda: _look_at_model(settings, tokenizers))
    else:
        yield CheckResult("model", "skip", "not named; --model NAME or FOLDER")


def _look_at_model(settings: DoctorSettings, tokenizers: dict[str, Fingerprint]) -> Iterator[CheckResult]:
    importlib.import_module(f"{_VERIFIER}.sources").require_sources(settings.verifier)  # reports mistyped names early
    checks = importlib.import_module(f"{_VERIFIER}.cli.doctor_checks")
    yield from checks.check_model(settings.verifier, load=settings.verify, tokenizers=tokenizers)


def _check_graph(settings: DoctorSettings, tokenizers: dict[str, Fingerprint]) -> Iterator[CheckResult]:
    paths = settings.graph_path
    if not paths:
        yield CheckResult("graph", "skip", "not named; --graph FILE")
        return
    from speculant_graph.cli.graphs import summary_of
    from speculant_graph.graph.layers import require_few
    from speculant_graph.graph.ngrams import NgramGraph

    require_few([path.resolve() for path in paths])
    checked = "all of it checked" if settings.verify else "description checked; --verify reads all"
    for path in paths:
        graph = NgramGraph.load(path, complete=settings.verify)
        tokenizers[GRAPH if len(paths) == 1 else f"{GRAPH} {path}"] = graph.metadata.tokenizer
        yield CheckResult("graph", "ok", f"{summary_of(path, graph)} ({checked})")


def _compare(tokenizers: Mapping[str, Fingerprint]) -> CheckResult:
    """Check that the model, the graphs and the drafters have the same tokenizer."""
    owners = ", ".join(tokenizers)
    if len(tokenizers) < 2:
        only = f"only {owners} was checked" if owners else "name a model, a graph or a drafter to compare"
        return CheckResult("tokenizers", "skip", only)
    # The model's tokenizer is right, because graphs are built for a model. Without a model, the most frequent one is.
    counts = Counter(one.sha256 for one in tokenizers.values())
    right = tokenizers.get(MODEL) or max(tokenizers.values(), key=lambda one: counts[one.sha256])
    wrong = [owner for owner, one in tokenizers.items() if one.sha256 != right.sha256]
    if not wrong:
        return CheckResult("tokenizers", "ok", f"the same for {owners} ({right.sha256[:12]})")
    shown = ", ".join(f"{owner} has '{one.name}' ({one.sha256[:12]})" for owner, one in tokenizers.items())
    fix = f"build again, with --tokenizer {right.name}: {', '.join(map(_graph_of, wrong))}"
    return CheckResult("tokenizers", "fail", shown, fix)


def _graph_of(owner: str) -> str:
    return owner if owner.startswith(GRAPH) else f"the graph of {owner}"


def _row(result: CheckResult, *, is_colored: bool) -> str:
    status = f"{result.status:<4}"
    if is_colored:
        status = f"\x1b[{_COLORS[result.status]}m{status}\x1b[0m"
    first, *more = [printable(line) for line in result.detail.splitlines()]
    lines = [f"{status}  {result.check:<10}  {first}", *(f"{'':<18}{line}" for line in more)]
    if result.fix:
        lines.append(f"{'':<18}-> {printable(result.fix)}")
    return "".join(f"{line}\n" for line in lines)


def _guarded(check: str, look: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check; if it raises an exception, the last result is a failure."""
    try:
        yield from look()
    except SpeculantError as error:
        yield CheckResult(check, "fail", error.message, error.fix)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:  # a file has an unexpected form
        yield CheckResult(check, "fail", f"{type(error).__name__}: {error}".replace("\n", " "), f"check the {check}")


def _check_settings(named: Path | None) -> Iterator[CheckResult]:
    """Check all settings, with the named configuration file or else the one in the current folder."""
    path = config_file([] if named is None else [f"--config={named}"])
    load_settings(AllSettings, "doctor", [] if path is None else [f"--config={path}"])
    variables = sum(name.upper().startswith("SPECULANT_") for name in os.environ)
    shown = f"{path}" if path else f"no {DEFAULT_FILE} here: defaults"
    yield CheckResult("settings", "ok", f"{shown}, environment variables: {variables}")


def _check_drafters(
    config: ClientConfig, draft: DraftConfig, tokenizers: dict[str, Fingerprint]
) -> Iterator[CheckResult]:
    """Check every sidecar that the client settings name: open a session, and draft as a verifier does."""
    if not config.address:
        yield CheckResult("drafter", "skip", "not named; --drafter unix:///path/to.sock or host:port")
        return
    from speculant_graph.rpc.addresses import reachable_addresses
    from speculant_graph.rpc.channel import Endpoint

    for address, host_name in reachable_addresses(config.address).items():
        one, endpoint = config.model_copy(update={"address": address}), Endpoint.of(address, config, host_name)
        yield from _guarded("drafter", partial(_check_drafts, endpoint, one, draft, tokenizers))


def _check_drafts(
    endpoint: Endpoint, config: ClientConfig, draft: DraftConfig, tokenizers: dict[str, Fingerprint]
) -> Iterator[CheckResult]:
    import grpc

    from speculant_graph.client.breaker import is_refusal
    from speculant_graph.rpc.status import from_status
    from speculant_graph.rpc.step_messages import VERSION_KEY
    from speculant_graph.rpc.v1 import drafter_pb2 as pb
    from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub

    with endpoint.connect() as channel:
        stub = DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        session_id = secrets.randbits(63) + 1
        opening = pb.OpenSessionRequest(session_id=session_id, graph=config.graph, tenant=config.tenant)
        options: dict[str, Any] = {"timeout": _PATIENCE_S, "metadata": endpoint.metadata}
        try:
            opened, call = stub.OpenSession.with_call(opening, **options)
            stub.CloseSession(pb.CloseSessionRequest(session_id=session_id, tenant=config.tenant), **options)
        except grpc.RpcError as error:
            problem = from_status(error.code(), error.details())
            fix = "" if is_refusal(problem) else "see its log; check address and credentials"
            yield CheckResult("drafter", "fail", f"{endpoint.address}: {problem}", fix)
            return
    theirs = next((str(value) for key, value in call.trailing_metadata() or () if key == VERSION_KEY), "unknown")
    fingerprint = Fingerprint(opened.tokenizer_name, opened.tokenizer_sha256.hex(), opened.vocabulary_size)
    tokenizers[f"the drafter at {endpoint.address}"] = fingerprint
    detail = (
        f"{endpoint.address} serves {config.graph or 'its default graph'}: generation {opened.graph_generation}, "
        f"orders 1-{opened.max_order}, tokenizer {opened.tokenizer_name}; version {theirs}"
    )
    if theirs == VERSION:
        yield CheckResult("drafter", "ok", detail)
    else:
        yield CheckResult("drafter", "warn", f"{detail}, {VERSION} here", "install the same release on both sides")
    yield _measure(config, draft, opened.vocabulary_size)


def _measure(config: ClientConfig, draft: DraftConfig, vocabulary_size: int) -> CheckResult:
    """Draft token by token, as a verifier does, and compare the latencies with the deadline."""
    from speculant_graph.client import DrafterClient

    numbers = random.Random(7)
    patient = config.model_copy(update={"deadline_ms": 1e3 * _PATIENCE_S, "learn": False})
    token_ids = [numbers.randrange(vocabulary_size) for _ in range(_PROMPT_TOKENS)]
    with DrafterClient(patient, tokenizer=None, draft=draft, strict=True, wants_proposals=False) as client:
        client.open(1)
        for _ in range(_NUM_DRAFTS):
            [proposal] = client.draft([SequenceStep(1, token_ids, node_budget=max(1, draft.k))])
            token_ids.append(proposal.token_ids[0] if len(proposal) else numbers.randrange(vocabulary_size))
        client.finish(1)
        counted = client.statistics
    if counted.failed_steps or not counted.round_trip_s:
        reason = counted.last_failure or "no answer"
        return CheckResult(
            "drafts", "fail", f"{counted.failed_steps} of {counted.steps} failed: {reason}", "see the drafter's log"
        )
    times_ms = sorted(1e3 * time_s for time_s in counted.round_trip_s)
    half, most = times_ms[len(times_ms) // 2], times_ms[int(0.99 * len(times_ms))]
    detail = (
        f"{counted.steps} of up to {max(1, draft.k)} nodes ({draft.strategy}): p50 {half:.2f} ms, p99 {most:.2f} ms, "
        f"longest {times_ms[-1]:.2f} ms; deadline {config.deadline_ms:g} ms"
    )
    if most > config.deadline_ms:
        return CheckResult(
            "drafts", "warn", detail, "give the drafter a core of its own, or raise --client.deadline-ms"
        )
    return CheckResult("drafts", "ok", detail)
