"""A proxy from the environment is never used for connections within this machine, by any part of the project."""

from __future__ import annotations

import http.server
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from speculant_graph.cli.main import main
from speculant_graph.rpc.channel import connect_channel

VARIABLES = {
    "grpc_proxy": {"grpc_proxy": "http://{proxy}"},
    "https_proxy": {"https_proxy": "http://{proxy}", "HTTPS_PROXY": "http://{proxy}"},
    "http_proxy": {"http_proxy": "http://{proxy}", "HTTP_PROXY": "http://{proxy}"},
    "all": {"ALL_PROXY": "http://{proxy}", "all_proxy": "http://{proxy}", "grpc_proxy": "http://{proxy}"},
    "by address": {
        "GRPC_ADDRESS_HTTP_PROXY": "{proxy}",
        "GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES": "127.0.0.0/8,::1/128,::ffff:127.0.0.0/104",
    },
}
HOSTS = ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "unix")


class Proxy:
    """Records received data, and disconnects."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            with connection:
                self.seen.append(connection.recv(1024))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    recording = Proxy()
    yield recording
    recording.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of a standard health service, by host."""
    folder = tmp_path_factory.mktemp("proxies")
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
        found = {"unix": f"unix://{folder}/s.sock"}
        server.add_insecure_port(found["unix"])
        port = server.add_insecure_port("127.0.0.1:0")
        found |= {host: f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]")}
        if _has_ipv6():
            found["[::1]"] = f"[::1]:{server.add_insecure_port('[::1]:0')}"
        server.start()
        yield found
        server.stop(None).wait()


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def _set(monkeypatch: pytest.MonkeyPatch, variables: str, proxy: Proxy) -> None:
    for name, value in VARIABLES[variables].items():
        monkeypatch.setenv(name, value.format(proxy=proxy.address))


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("variables", VARIABLES)
def test_this_machine_is_reached_without_a_proxy(
    variables: str,
    host: str,
    addresses: dict[str, str],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if host not in addresses:
        pytest.skip("needs IPv6")
    _set(monkeypatch, variables, proxy)
    with connect_channel(addresses[host]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert main(["probe", addresses[host], "--wait-s", "30"]) == 0, capsys.readouterr().err
    assert proxy.seen == []


@pytest.mark.parametrize("variables", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_other_machines_are_reached_by_the_proxy(
    variables: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _set(monkeypatch, variables, proxy)
    assert main(["probe", "192.0.2.7:50051"]) == 1
    assert "no gRPC server answers there" in capsys.readouterr().err
    assert proxy.seen[0].startswith(b"CONNECT 192.0.2.7:50051 ")


@pytest.mark.parametrize("variables", ["http_proxy", "all"])
def test_a_bench_asks_its_own_machine_without_a_proxy(
    variables: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _set(monkeypatch, variables, proxy)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)  # has no methods
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        assert main(["bench", "serve", "--url", f"http://127.0.0.1:{server.server_port}/v1"]) == 1
    finally:
        server.shutdown()
        server.server_close()
    assert "no OpenAI-compatible server" in capsys.readouterr().err
    assert proxy.seen == []


def test_channels_are_made_by_one_function() -> None:
    roots = [Path(__file__).parents[2] / name for name in ("shared", "drafter_server", "verifier_client")]
    made = re.compile(r"\b(in)?secure_channel\(")
    assert [file.name for root in roots for file in root.rglob("*.py") if made.search(file.read_text())] == [
        "channel.py"
    ]
