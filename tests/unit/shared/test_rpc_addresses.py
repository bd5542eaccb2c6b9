"""Addresses of drafters, as users write them and as gRPC expects them."""

from __future__ import annotations

from socket import AF_INET, AF_INET6

import pytest

from speculant_graph.errors import ConfigError
from speculant_graph.rpc import addresses
from speculant_graph.rpc.addresses import (
    MAX_SOCKET_PATH_BYTES,
    grpc_target,
    is_loopback,
    lasting_name,
    lookup,
    reachable_addresses,
    socket_path,
    split_addresses,
    stays_local,
)


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
    with pytest.raises(ConfigError) as caught:
        grpc_target(address)
    assert caught.value.field == "address"


def test_too_long_socket_paths_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        socket_path("unix:///" + "a" * MAX_SOCKET_PATH_BYTES)
    assert caught.value.field == "address"


LOCAL = ("unix:///d.sock", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "0.0.0.0:1", "LocalHost:1")
REMOTE = ("10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1", "169.254.1.1:1")
NAMES = {
    "me": ["127.0.1.1"],
    "me6": ["::1", "127.0.0.1"],
    "both": ["127.0.0.1", "10.0.0.1"],
    "drafter.example": ["10.0.0.1"],
}


def test_addresses_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host not in NAMES:
            raise OSError
        return [(0, 0, 0, "", (address, 0)) for address in NAMES[host]]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolve)
    assert not stays_local("me:1")  # names are not resolved if there is no proxy
    assert not asked
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    assert all(map(stays_local, LOCAL))
    assert not any(map(stays_local, REMOTE))
    assert not asked
    local = [name for name in (*NAMES, "unknown") if stays_local(f"{name}:1")]
    assert local == ["me", "me6"]
    assert is_loopback("[::ffff:127.0.0.1]")
    assert not is_loopback("0.0.0.0")


def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "fleet": [(AF_INET, "10.0.0.2"), (AF_INET, "10.0.0.1"), (AF_INET6, "fd00::1")],
        "six": [(AF_INET6, "fd00::1"), (AF_INET, "10.0.0.1")],
    }

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise OSError
        return [(family, 0, 0, "", (address, port)) for family, address in known[host]]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolve)
    assert lookup("dns:///fleet:50051") == ("10.0.0.1:50051", "10.0.0.2:50051")
    assert lookup("dns:///six:1") == ("[fd00::1]:1",)
    assert lookup("dns:///nobody:1") == ()
    assert lookup("fleet:1") == ("fleet:1",)
    assert reachable_addresses("unix:///d.sock, dns:///fleet:7,dns:///nobody:8") == {
        "unix:///d.sock": "", "10.0.0.1:7": "fleet", "10.0.0.2:7": "fleet", "nobody:8": "nobody"
    }  # fmt: skip


@pytest.mark.parametrize(
    "address", ["dns:///unix:///d.sock", "dns:///fleet", "dns:///", "dns://fleet:1", "localhost:1,", ",localhost:1"]
)
def test_other_names_are_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_addresses(address)
    assert caught.value.field == "address"


def test_a_number_may_have_a_lasting_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def name_of(address: tuple[str, int], _: int) -> tuple[str, str]:
        if address[0] != "10.0.0.1" and address[0] != "fd00::1":
            raise OSError
        return "drafter-0.drafter", str(address[1])

    monkeypatch.setattr(addresses.socket, "getnameinfo", name_of)
    assert lasting_name("10.0.0.1:7") == lasting_name("[fd00::1]:7") == "drafter-0.drafter:7"
    for other in ("10.0.0.2:7", "drafter:7", "unix:///d.sock"):
        assert lasting_name(other) == other
