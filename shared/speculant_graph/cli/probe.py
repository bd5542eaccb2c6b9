"""``speculant probe``: ask a running drafter or verifier whether it serves, for the probes of containers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from speculant_graph.cli.terminal import printable
from speculant_graph.errors import ConfigError

if TYPE_CHECKING:
    import grpc

_TIMEOUT_S = 1.0
_PAUSE_S = 0.2


def run(arguments: Sequence[str]) -> int:
    """Ask every address; return 1 if any does not serve.

    Raises:
        ConfigError: the command line, an address or a certificate is wrong. Nobody was asked then.
    """
    if len(arguments) == 1 and arguments[0].startswith("unix://"):
        # What a probe asks every few seconds: nothing is encrypted there, so no settings are read, which would take
        # longer than all the rest.
        return _report(_ask(_plain_channels(arguments[0]), "", _TIMEOUT_S))
    from speculant_graph.cli.probe_settings import ProbeSettings, channels_of
    from speculant_graph.settings import load_settings

    settings = load_settings(ProbeSettings, "probe", arguments)
    if not settings.address.strip(", "):
        raise ConfigError("ADDRESS is empty; give unix:///path/to.sock or host:port")
    deadline = time.monotonic() + settings.wait_s
    is_told = not sys.stderr.isatty()
    # Channels are made anew, as old ones would wait longer and longer before they try an address again.
    while any((problems := _ask(channels_of(settings), settings.service, settings.timeout_s)).values()):
        if time.monotonic() + _PAUSE_S > deadline:
            break
        if not is_told:
            is_told = True
            waited_for = ", ".join(address for address, problem in problems.items() if problem)
            sys.stderr.write(f"waiting up to {settings.wait_s:g} s for {waited_for}\n")
        time.sleep(_PAUSE_S)
    return _report(problems)


def _plain_channels(addresses: str) -> dict[str, grpc.Channel]:
    import grpc

    from speculant_graph.rpc.addresses import grpc_target, split_addresses

    return {address: grpc.insecure_channel(grpc_target(address)) for address in split_addresses(addresses)}


def _report(problems: dict[str, str]) -> int:
    for address, problem in problems.items():
        if problem:
            sys.stderr.write(f"speculant: probe: {address}: {printable(problem)}\n")
        else:
            sys.stdout.write(f"{address}: SERVING\n")
    return int(any(problems.values()))


def _ask(channels: dict[str, grpc.Channel], service: str, timeout_s: float) -> dict[str, str]:
    problems = {}
    for address, channel in channels.items():
        with channel:
            problems[address] = _problem(channel, service, timeout_s)
    return problems


def _problem(channel: grpc.Channel, service: str, timeout_s: float) -> str:
    """Return why nothing is served, for people; empty if it is."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    request = health_pb2.HealthCheckRequest(service=service)
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
    except grpc.RpcError as error:
        # A call's RpcError is the call itself.
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return f"it knows no service '{service}'; leave --service out to ask of all"
        return f"{error.code().name}: no gRPC server answers there; see its log"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"{health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}: it starts or stops; see its log"
