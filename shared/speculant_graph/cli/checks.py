"""What ``speculant doctor`` looks at without a model: settings and drafter sidecars."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.settings import DEFAULT_FILE, AllSettings, config_file, load_settings
from speculant_graph.types import Fingerprint, SequenceStep
from speculant_graph.version import VERSION

if TYPE_CHECKING:
    from speculant_graph.rpc.channel import Endpoint

NUM_DRAFTS = 200
"""Drafts of a measurement."""
_PROMPT_TOKENS = 64
_PATIENCE_S = 5.0

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


def check_settings(named: Path | None) -> Iterator[CheckResult]:
    """Check that the settings file, named on the command line or not, and the environment hold for every section.

    Raises:
        ConfigError: they do not.
    """
    path = config_file([] if named is None else [f"--config={named}"])
    load_settings(AllSettings, "doctor", [] if path is None else [f"--config={path}"])
    variables = sum(name.upper().startswith("SPECULANT_") for name in os.environ)
    shown = f"{path}" if path else f"no {DEFAULT_FILE} here: defaults"
    yield CheckResult("settings", "ok", f"{shown}, environment variables: {variables}")


def check_drafters(
    config: ClientConfig, draft: DraftConfig, tokenizers: dict[str, Fingerprint]
) -> Iterator[CheckResult]:
    """Check every sidecar of a client's settings: a session, and drafts as a verifier would ask for them.

    Args:
        config: addresses, credentials, graph and deadline.
        draft: how to draft.
        tokenizers: takes those of their graphs, by owner.

    Raises:
        ConfigError: an address or a credential is wrong.
    """
    if not config.address:
        yield CheckResult("drafter", "skip", "not named; --address unix:///path/to.sock or host:port")
        return
    from speculant_graph.rpc.addresses import split_addresses
    from speculant_graph.rpc.channel import Endpoint

    for address in split_addresses(config.address):
        one = config.model_copy(update={"address": address})
        yield from guarded("drafter", partial(_check_drafts, Endpoint.of(address, config), one, draft, tokenizers))


def _check_drafts(
    endpoint: Endpoint, config: ClientConfig, draft: DraftConfig, tokenizers: dict[str, Fingerprint]
) -> Iterator[CheckResult]:
    import grpc

    from speculant_graph.rpc.messages import VERSION_KEY
    from speculant_graph.rpc.status import from_status
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
            reason = f"{endpoint.address}: {from_status(error.code(), error.details())}"
            yield CheckResult("drafter", "fail", reason, "start it, and see its log; check address and credentials")
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
    """Draft as a verifier does, token by token, and hold the times against the deadline."""
    from speculant_graph.client import DrafterClient

    numbers = random.Random(7)
    patient = config.model_copy(update={"deadline_ms": 1e3 * _PATIENCE_S, "learn": False})
    token_ids = [numbers.randrange(vocabulary_size) for _ in range(_PROMPT_TOKENS)]
    with DrafterClient(patient, tokenizer=None, draft=draft, strict=True, wants_proposals=False) as client:
        client.open(1)
        for _ in range(NUM_DRAFTS):
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
