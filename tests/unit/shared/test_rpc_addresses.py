"""Addresses of drafters, as people write them and as gRPC takes them."""

from __future__ import annotations

import pytest

from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import MAX_SOCKET_PATH_BYTES, grpc_target, socket_path


def test_addresses() -> None:
    assert grpc_target("unix:///run/a b.sock") == "unix:///run/a%20b.sock"
    assert str(socket_path("unix:///run/a b.sock")) == "/run/a b.sock"
    for address in ("localhost:50051", "[::1]:50051", "10.0.0.1:1"):
        assert grpc_target(address) == address
        assert socket_path(address) is None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "unix:/run/a",
        "localhost",
        "http://a:1",
        "a:70000",
        "::1:5",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"write host:port, \[::1\]:port or unix:///path/to\.sock"):
        grpc_target(address)


def test_too_long_socket_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"at most {MAX_SOCKET_PATH_BYTES}"):
        socket_path("unix:///" + "a" * MAX_SOCKET_PATH_BYTES)
