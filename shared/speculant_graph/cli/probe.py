"""``speculant probe``: checks whether a drafter or verifier is serving, for container health probes.

Container platforms run this command every few seconds. The command reads no settings, because loading the settings
libraries would take longer than all its other work.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NoReturn

from speculant_graph.errors import ConfigError
from speculant_graph.help_format import HelpFormatter
from speculant_graph.terminal import printable

_TIMEOUT_S = 1.0
_PAUSE_S = 0.2
_SILENT_S = 2.0
"""Seconds after which a waiting probe says what it is waiting for."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, fix="see speculant probe --help")


def make_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        "speculant probe",
        description="Ask drafters and verifiers whether they serve, by gRPC's standard health service, unencrypted. "
        "The exit status is 0 if all of them do, else 1.",
        formatter_class=HelpFormatter,
    )
    where = "Addresses: unix:///path/to.sock or host:port, several of them separated by commas."
    parser.add_argument("address", metavar="ADDRESS", help=where)
    waiting = "Ask again until all serve, for at most this many seconds."
    parser.add_argument("--wait-s", type=float, default=0.0, metavar="X", help=waiting)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Check the server at every address; return 1 if any server is not serving.

    Raises:
        ConfigError: the command line or an address is wrong. This error is raised before any server is contacted.
    """
    options = make_parser().parse_args(arguments)
    from speculant_graph.rpc.addresses import reachable_addresses

    addresses = reachable_addresses(options.address)
    started_s, told = time.monotonic(), dict[str, str]()
    while any((problems := {address: _problem(address) for address in addresses}).values()):
        waited_s = time.monotonic() - started_s
        if waited_s + _PAUSE_S > options.wait_s:
            break
        if waited_s > _SILENT_S and problems != told:
            told = problems
            for address, problem in problems.items():
                if problem:
                    sys.stderr.write(f"speculant: probe: waiting for {address}: {printable(problem)}\n")
        time.sleep(_PAUSE_S)
    for address, problem in problems.items():
        if problem:
            sys.stderr.write(f"speculant: probe: {address}: {printable(problem)}\n")
        else:
            sys.stdout.write(f"{address}: SERVING\n")
    return int(any(problems.values()))


def _problem(address: str) -> str:
    """Return the reason why the server at an address is not serving; empty if it is serving."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from speculant_graph.rpc.channel import open_channel

    # Use a new channel each time, because an old one waits longer and longer before it reconnects.
    with open_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:  # a call's RpcError is the call itself
            from speculant_graph.rpc.status import from_status

            problem = str(from_status(error.code(), error.details()))
            is_refused = "no server answers there" in problem  # the problem contains the fix
            if is_refused or error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return problem
            return f"{problem}: no gRPC server answers there; correct the address, or see the server's log"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"{health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}: it's starting or stopping; see its log"
