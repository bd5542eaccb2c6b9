"""``speculant admin`` against real servers of the admin service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from speculant_graph.cli.main import main
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1 import verifier_pb2
from speculant_graph.rpc.v1.drafter_pb2_grpc import (
    DrafterAdminServiceServicer,
    add_DrafterAdminServiceServicer_to_server,
)
from speculant_graph.rpc.v1.verifier_pb2_grpc import (
    VerifierAdminServiceServicer,
    add_VerifierAdminServiceServicer_to_server,
)


class Graphs(DrafterAdminServiceServicer):
    """Knows graphs by name."""

    def __init__(self) -> None:
        self.names = ["docs"]
        self.generation = 1

    def info(self, name: str) -> pb.GraphInfo:
        return pb.GraphInfo(
            name=name, generation=self.generation, corpus_tokens=1_234_567, max_order=5, tokenizer_sha256=b"\x01\xff"
        )

    def ListGraphs(self, request: Any, context: Any) -> pb.ListGraphsResponse:
        return pb.ListGraphsResponse(graphs=map(self.info, self.names))

    def ReloadGraph(self, request: Any, context: Any) -> pb.ReloadGraphResponse:
        if request.name not in self.names:
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such graph;\nname another")
        self.generation += 1
        return pb.ReloadGraphResponse(graph=self.info(request.name))


@pytest.fixture
def services(tmp_path: Path) -> Iterator[dict[str, Graphs]]:
    """Two admin services by their address."""
    served = {f"unix://{tmp_path}/admin-{index}.sock": Graphs() for index in range(2)}
    with ThreadPoolExecutor(2) as threads:
        servers = [grpc.server(threads) for _ in served]
        for server, (address, service) in zip(servers, served.items(), strict=True):
            add_DrafterAdminServiceServicer_to_server(service, server)
            server.add_insecure_port(address)
            server.start()
        yield served
        for server in servers:
            server.stop(None).wait()


def run_json(capsys: pytest.CaptureFixture[str], services: dict[str, Graphs], *arguments: str) -> list[dict[str, Any]]:
    assert main(["admin", *arguments, "--address", ",".join(services)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    report = json.loads(shown.out)
    assert report["action"] == arguments[0]
    assert [sidecar["address"] for sidecar in report["sidecars"]] == list(services)
    return [{name: value for name, value in one.items() if name != "address"} for one in report["sidecars"]]


def test_every_action_reaches_every_sidecar(capsys: pytest.CaptureFixture[str], services: dict[str, Graphs]) -> None:
    for answer in run_json(capsys, services, "list"):
        (graph,) = answer["graphs"]
        assert (graph["name"], graph["corpus_tokens"], graph["tokenizer_sha256"]) == ("docs", 1_234_567, "01ff")
    assert [answer["graph"]["generation"] for answer in run_json(capsys, services, "reload", "docs")] == [2, 2]


def test_failures_are_a_line_each_and_stop_nothing(
    capsys: pytest.CaptureFixture[str], services: dict[str, Graphs], tmp_path: Path
) -> None:
    first, second = services
    services[first].names.clear()
    away = f"unix://{tmp_path}/away.sock"
    assert main(["admin", "reload", "docs", "--address", f"{first},{away},{second}"]) == 1
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert lines[0] == f"speculant: admin: {first}: NOT_FOUND: there is no such graph; name another"
    assert lines[1].startswith(f"speculant: admin: {away}: UNAVAILABLE: ")
    assert len(lines) == 2
    assert [set(one) - {"address"} for one in json.loads(shown.out)["sidecars"]] == [{"error"}, {"error"}, {"graph"}]
    assert services[second].generation == 2


class Adapters(VerifierAdminServiceServicer):
    """Knows two adapters and loads any."""

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
        (["reload", "--address", "localhost:1"], "'reload' that of a graph"),
        (["adapter", "unload", "--address", "localhost:1"], "'adapter' is followed by list, load NAME or rollback"),
        (["list", "--address", "example.com:1", "--token", "hush"], "client.token would travel to example.com:1"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    assert main(["admin", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert complaint in shown.err
    assert "hush" not in shown.err
