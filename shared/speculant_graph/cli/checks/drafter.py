"""Drafter sidecars: the socket, readiness, and drafts as a verifier would ask for them."""

from __future__ import annotations

import os
import random
import secrets
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.cli.checks.finding import Finding, Identities, Status, guarded
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.types import Fingerprint, SequenceStep

if TYPE_CHECKING:
    from speculant_graph.rpc.channel import Endpoint

NUM_DRAFTS = 200
"""Drafts of a measurement."""
_PROMPT_TOKENS = 64
_PATIENCE_S = 5.0


def check_drafters(config: ClientConfig, draft: DraftConfig, identities: Identities) -> Iterator[Finding]:
    """Check every sidecar of a client's settings.

    Args:
        config: addresses, credentials, graph and deadline.
        draft: how to draft.
        identities: takes the tokenizers of their graphs.

    Raises:
        ConfigError: an address or a credential is wrong.
    """
    if not config.address:
        yield Finding("drafter", "skip", "not named; --address unix:///path/to.sock or host:port")
        return
    from speculant_graph.rpc.addresses import split_addresses
    from speculant_graph.rpc.channel import Endpoint

    for address in split_addresses(config.address):
        one = config.model_copy(update={"address": address})
        yield from guarded(
            "drafter", "see its log", partial(_check_one, Endpoint.of(address, config), one, draft, identities)
        )


def _check_one(
    endpoint: Endpoint, config: ClientConfig, draft: DraftConfig, identities: Identities
) -> Iterator[Finding]:
    for finding in check_socket("drafter socket", endpoint.address):
        yield finding
        if finding.status == "fail":
            return
    # Until a drafter serves, text comes without drafts.
    for finding in check_health(endpoint, "drafter", not_serving="warn"):
        yield finding
        if finding.status in ("fail", "warn"):
            return
    yield from guarded(
        "drafts", "see the log of the drafter", lambda: _check_drafts(endpoint, config, draft, identities)
    )


def check_graphs(address: str, config: ClientConfig) -> Iterator[Finding]:
    """List the graphs of a sidecar.

    Args:
        address: its admin address; empty: not looked at.
        config: encryption and credentials.

    Raises:
        ConfigError: the address or a credential is wrong.
        SpeculantError: it does not answer, or does not let this client.
    """
    if not address:
        yield Finding("drafter graphs", "skip", "not named; --admin-address, where server.admin_listen is")
        return
    import grpc

    from speculant_graph.rpc.channel import Endpoint
    from speculant_graph.rpc.status import from_status
    from speculant_graph.rpc.v1 import drafter_pb2 as pb
    from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterAdminServiceStub

    endpoint = Endpoint.of(address, config)
    with endpoint.connect() as channel:
        stub = DrafterAdminServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            graphs = stub.ListGraphs(pb.ListGraphsRequest(), timeout=_PATIENCE_S, metadata=endpoint.metadata).graphs
        except grpc.RpcError as error:
            raise from_status(error.code(), error.details()) from error
    if not graphs:
        remedy = "wait while it loads its graphs, or load one by 'speculant admin load NAME PATH'"
        yield Finding("drafter graphs", "warn", "none is served now", remedy)
    for graph in graphs:
        detail = (
            f"{graph.name}: generation {graph.generation}, {graph.corpus_tokens:,} tokens, orders 1-{graph.max_order}"
        )
        yield Finding("drafter graphs", "ok", f"{detail}, {graph.open_sessions} sessions")


def check_socket(check: str, address: str) -> Iterator[Finding]:
    """Check that a Unix socket is there, is one, may be used by this user and not by everybody.

    Args:
        check: the check's name.
        address: ``unix:///path``; nothing is said of others.
    """
    from speculant_graph.rpc.addresses import socket_path

    path = socket_path(address)
    if path is None:
        return
    try:
        status = path.stat()
    except FileNotFoundError:
        yield Finding(
            check, "fail", f"{path} does not exist", "start the server, or give the address that it listens on"
        )
        return
    except PermissionError:
        remedy = "run as the server's user, or let this user into the folder"
        yield Finding(check, "fail", f"{path}: this user may not enter its folder", remedy)
        return
    mode = f"mode {stat.S_IMODE(status.st_mode):03o}, folder {stat.S_IMODE(path.parent.stat().st_mode):03o}"
    if not stat.S_ISSOCK(status.st_mode):
        yield Finding(check, "fail", f"{path} is no socket", "give the address that the server listens on")
    elif not os.access(path, os.R_OK | os.W_OK):
        yield Finding(check, "fail", f"{path} ({mode}): this user may not use it", "run as the server's user")
    elif status.st_mode & stat.S_IWOTH and _is_open(path.parent):
        yield Finding(check, "warn", f"{path} ({mode}): every user may use it", f"chmod o-rwx {path}")
    else:
        yield Finding(check, "ok", f"{path} ({mode})")


def _is_open(folder: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))


def check_health(endpoint: Endpoint, check: str, not_serving: Status) -> Iterator[Finding]:
    """Ask a server whether it serves.

    Args:
        endpoint: where it is.
        check: the check's name.
        not_serving: how it is for users if the server answers that it does not serve.
    """
    try:
        from grpc_health.v1 import health_pb2, health_pb2_grpc
    except ModuleNotFoundError:
        yield Finding(check, "skip", 'readiness needs: pip install "speculant-graph[drafter]"')
        return
    import grpc

    from speculant_graph.rpc.status import from_status

    with endpoint.connect() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(
                health_pb2.HealthCheckRequest(), timeout=_PATIENCE_S, metadata=endpoint.metadata, wait_for_ready=False
            )
        except grpc.RpcError as error:
            remedy = "start it, and see its log; check address and certificates"
            yield Finding(check, "fail", f"{endpoint.address}: {from_status(error.code(), error.details())}", remedy)
            return
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        remedy = "wait until it has loaded, or see its log"
        yield Finding(check, not_serving, f"{endpoint.address} answers, and does not serve now", remedy)
        return
    yield Finding(check, "ok", f"{endpoint.address} serves")


def _check_drafts(
    endpoint: Endpoint, config: ClientConfig, draft: DraftConfig, identities: Identities
) -> Iterator[Finding]:
    import grpc

    from speculant_graph.rpc.messages import VERSION_KEY
    from speculant_graph.rpc.status import from_status
    from speculant_graph.rpc.v1 import drafter_pb2 as pb
    from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub
    from speculant_graph.version import VERSION

    with endpoint.connect() as channel:
        stub = DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        number = secrets.randbits(63) + 1
        opening = pb.OpenSessionRequest(session_id=number, graph=config.graph, tenant=config.tenant)
        options: dict[str, Any] = {"timeout": _PATIENCE_S, "metadata": endpoint.metadata}
        try:
            opened, call = stub.OpenSession.with_call(opening, **options)
            stub.CloseSession(pb.CloseSessionRequest(session_id=number, tenant=config.tenant), **options)
        except grpc.RpcError as error:
            raise from_status(error.code(), error.details()) from error
    theirs = next((str(value) for key, value in call.trailing_metadata() or () if key == VERSION_KEY), "")
    if theirs == VERSION:
        yield Finding("drafter version", "ok", f"{theirs}, as here")
    else:
        detail = f"{theirs or 'not told'} at {endpoint.address}, {VERSION} here"
        yield Finding("drafter version", "warn", detail, "install the same release on both sides")
    fingerprint = Fingerprint(opened.tokenizer_name, opened.tokenizer_sha256.hex(), opened.vocabulary_size)
    identities.add(f"the drafter at {endpoint.address}", fingerprint)
    detail = f"{config.graph or 'the default'}: generation {opened.graph_generation}, orders 1-{opened.max_order}"
    yield Finding("drafter graph", "ok", f"{detail}, tokenizer {opened.tokenizer_name} ({fingerprint.sha256[:12]})")
    yield from _measure(config, draft, opened.vocabulary_size)


def _measure(config: ClientConfig, draft: DraftConfig, vocabulary_size: int) -> Iterator[Finding]:
    """Draft as a verifier does, token by token, and hold the times against the deadline."""
    from speculant_graph.client import DrafterClient

    numbers = random.Random(7)
    patient = config.model_copy(
        update={"deadline_ms": 1e3 * _PATIENCE_S, "open_deadline_ms": 1e3 * _PATIENCE_S, "learn": False}
    )
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
        yield Finding("drafts", "fail", f"{counted.failed_steps} of {counted.steps} failed: {reason}", "see its log")
        return
    half, most, worst = (_quantile_ms(counted.round_trip_s, share) for share in (0.5, 0.99, 1.0))
    detail = (
        f"{counted.steps} of up to {max(1, draft.k)} nodes ({draft.strategy}): "
        f"p50 {half:.2f} ms, p99 {most:.2f} ms, longest {worst:.2f} ms; deadline {config.deadline_ms:g} ms"
    )
    if most > config.deadline_ms:
        yield Finding("drafts", "warn", detail, "give the drafter a core of its own, or raise --client.deadline-ms")
    else:
        yield Finding("drafts", "ok", detail)


def _quantile_ms(times_s: Sequence[float], share: float) -> float:
    ordered = sorted(times_s)
    return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
