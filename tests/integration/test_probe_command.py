"""``speculant probe`` on real servers that serve, start, stop or are down."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from speculant_graph.cli import probe
from speculant_graph.cli.main import main
from support.server import serving


@pytest.fixture
def server(tmp_path):
    """The standard health service on a socket, as (address, servicer)."""
    servicer = health.HealthServicer()
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        address = f"unix://{tmp_path}/s.sock"
        server.add_insecure_port(address)
        server.start()
        yield address, servicer
        server.stop(None).wait()


def test_a_drafter_is_asked(capsys, graph_path, tmp_path):
    with serving(graph_path, tmp_path) as live:
        assert main(["probe", live.address]) == 0
        assert capsys.readouterr().out == f"{live.address}: SERVING\n"


def test_every_address_must_serve(capsys, server, tmp_path):
    address, servicer = server
    servicer.set("", HealthCheckResponse.SERVING)
    away = f"unix://{tmp_path}/away.sock"
    assert main(["probe", f"{away},{address}"]) == 1
    shown = capsys.readouterr()
    assert shown.out == f"{address}: SERVING\n"
    assert shown.err.startswith(f"speculant: probe: {away}: UNAVAILABLE: ")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        assert main(["probe", f"unix://{tmp_path}/silent.sock"]) == 1
    assert "no gRPC server answers there" in capsys.readouterr().err


def test_servers_that_start_are_waited_for(capsys, server):
    address, servicer = server
    servicer.set("", HealthCheckResponse.NOT_SERVING)
    assert main(["probe", address, "--wait-s", "0.5"]) == 1
    assert "NOT_SERVING: it's starting or stopping" in capsys.readouterr().err
    later = threading.Timer(0.4, servicer.set, ("", HealthCheckResponse.SERVING))
    later.start()
    assert main(["probe", address, "--wait-s", "20"]) == 0
    later.join()
    assert capsys.readouterr() == (f"{address}: SERVING\n", "")


def test_a_long_wait_says_once_what_it_waits_for(capsys, server, monkeypatch):
    monkeypatch.setattr(probe, "_SILENT_S", 0.1)
    address, servicer = server
    servicer.set("", HealthCheckResponse.NOT_SERVING)
    assert main(["probe", address, "--wait-s", "1.2"]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first == last.replace("probe: ", "probe: waiting for ", 1)


def test_a_probe_reads_no_settings(server):
    """A probe runs every few seconds, so it must not import modules that take half a second to load."""
    address, servicer = server
    servicer.set("", HealthCheckResponse.SERVING)
    code = (
        "import sys\nfrom speculant_graph.cli.main import main\nstatus = main(sys.argv[1:])\n"
        "sys.exit(status or 10 * any(name in sys.modules for name in ('pydantic', 'numpy', 'torch')))"
    )
    result = subprocess.run([sys.executable, "-c", code, "probe", address], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, f"{address}: SERVING\n"), result.stderr
