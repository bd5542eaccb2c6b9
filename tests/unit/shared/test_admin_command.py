"""``speculant admin`` against real servers of the admin service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from speculant_graph.cli.main import main
from speculant_graph.rpc.v1 import verifier_pb2
from speculant_graph.rpc.v1.verifier_pb2_grpc import (
    VerifierAdminServiceServicer,
    add_VerifierAdminServiceServicer_to_server,
)
from support.server import LiveServer, graph_file, serving


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[LiveServer]]:
    """Two sidecars with an admin service and differently named graphs."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(serving(graph_file(tmp_path / f"{name}.pkl", [1, 2, 3] * 8), tmp_path / name))
            for name in ("docs", "code")
        ]


def admin_addresses(servers: list[LiveServer]) -> list[str]:
    return [server.server.admin_addresses[0] for server in servers]


def test_every_action_reaches_every_sidecar(capsys: pytest.CaptureFixture[str], servers: list[LiveServer]) -> None:
    addresses = admin_addresses(servers)
    assert main(["admin", "list", "--address", ",".join(addresses)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["action"] == "list"
    assert [sidecar["address"] for sidecar in report["sidecars"]] == addresses
    graphs = [graph for sidecar in report["sidecars"] for graph in sidecar["graphs"]]
    assert [(graph["name"], graph["corpus_tokens"]) for graph in graphs] == [("docs", 24), ("code", 24)]
    assert {graph["tokenizer_sha256"] for graph in graphs} == {"ab" * 32}


def test_failures_are_a_line_each_and_stop_nothing(
    capsys: pytest.CaptureFixture[str], servers: list[LiveServer], tmp_path: Path
) -> None:
    second, first = admin_addresses(servers)
    away = f"unix://{tmp_path}/away.sock"
    assert main(["admin", "reload", "docs", "--address", f"{first},{away},{second}"]) == 1
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert lines[0].startswith(f"speculant: admin: {first}: NOT_FOUND: no graph docs is served; ")
    assert lines[1].startswith(f"speculant: admin: {away}: UNAVAILABLE: ")
    assert len(lines) == 2
    sidecars = json.loads(shown.out)["sidecars"]
    assert [set(one) - {"address"} for one in sidecars] == [{"error"}, {"error"}, {"graph"}]
    assert sidecars[2]["graph"]["generation"] == 2


class Adapters(VerifierAdminServiceServicer):
    """Has two adapters and accepts any load."""

    def __init__(self) -> None:
        self.state = verifier_pb2.DraftModelState(names=["legal", "code"], present=verifier_pb2.Adapter())

    def ListAdapters(self, request: Any, context: Any) -> Any:
        return verifier_pb2.ListAdaptersResponse(state=self.state)

    def LoadAdapter(self, request: Any, context: Any) -> Any:
        self.state.previous.CopyFrom(self.state.present)
        self.state.present.CopyFrom(verifier_pb2.Adapter(name=request.name, sha256=bytes(range(32))))
        self.state.previous_acceptance = 0.75
        return verifier_pb2.LoadAdapterResponse(state=self.state)

    def RollbackAdapter(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no adapter to go back to; load one by its name")


def test_adapters_of_verifiers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/admin.sock"
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        add_VerifierAdminServiceServicer_to_server(Adapters(), server)
        server.add_insecure_port(address)
        server.start()
        shown = []
        for arguments in (["list"], ["load", "legal"], ["list"], ["load", ""]):
            assert main(["admin", "adapter", *arguments, "--address", address]) == 0
            shown.append(capsys.readouterr().out)
        assert main(["admin", "adapter", "rollback", "--address", address]) == 1
        complaint = capsys.readouterr().err
        server.stop(None).wait()
    states = [json.loads(text)["verifiers"][0]["state"] for text in shown]
    assert [state["present"]["name"] for state in states] == ["", "legal", "legal", ""]
    assert states[0]["names"] == ["legal", "code"]
    assert (states[1]["present"]["sha256"], states[1]["previous"]["name"]) == (bytes(range(32)).hex(), "")
    assert (states[1]["acceptance"], states[1]["previous_acceptance"], states[1]["passes_time"]) == (None, 0.75, None)
    assert complaint.endswith("INVALID_ARGUMENT: there is no adapter to go back to; load one by its name\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list"], "name the server's admin address by --address"),
        (["list", "--address", "nowhere"], "'nowhere' is not an address"),
        (["adapter", "unload", "--address", "localhost:1"], "'adapter load NAME' or 'adapter rollback'"),
        (["list", "--address", "example.com:1", "--token", "hush"], "client.token would travel to example.com:1"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    assert main(["admin", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert complaint in shown.err
    assert "hush" not in shown.err
