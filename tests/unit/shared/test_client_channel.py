"""Addresses, certificates and tokens: mistakes show when a client is made, and say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from speculant_graph.client import AsyncDrafterClient, DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import split_addresses
from speculant_graph.rpc.channel import Endpoint

SOCKET = "unix:///tmp/d.sock"


def config(address: str = SOCKET, **fields: object) -> ClientConfig:
    return ClientConfig.model_validate({"address": address, **fields})


@pytest.mark.parametrize("kind", [DrafterClient, AsyncDrafterClient])
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "set client.address"),
        (f"{SOCKET},", "is not an address"),
        (f"{SOCKET},drafter", "is not an address"),
        (f"{SOCKET}, {SOCKET}", "name every drafter once"),
    ],
)
def test_addresses_that_are_none_are_refused(kind: Any, address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(config(address), tokenizer=None, draft=DraftConfig())


def test_addresses_are_separated_by_commas() -> None:
    assert split_addresses(f"{SOCKET}, localhost:80,[::1]:81") == (SOCKET, "localhost:80", "[::1]:81")


@pytest.mark.parametrize("address", ["10.0.0.7:50051", "drafter.example:50051", "[2001:db8::1]:50051", "127.evil:1"])
def test_a_token_does_not_travel_unencrypted(address: str) -> None:
    with pytest.raises(ConfigError, match=r"client.token would travel .* unencrypted; set client.tls"):
        Endpoint.of(address, config(token="secret"))
    assert Endpoint.of(address, config(token="secret", tls=True)).metadata == (("authorization", "Bearer secret"),)


@pytest.mark.parametrize("address", [SOCKET, "localhost:50051", "127.0.0.1:50051", "[::1]:50051"])
def test_a_token_may_travel_within_this_machine(address: str) -> None:
    endpoint = Endpoint.of(address, config(token="secret"))
    assert endpoint.metadata == (("authorization", "Bearer secret"),)
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize("token", ["", "two words", "line\n", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n"])
def test_tokens_that_no_header_can_hold_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match=r"client.token must be visible ASCII"):
        Endpoint.of(SOCKET, config(token=token))


@pytest.mark.parametrize("setting", ["tls_ca", "tls_certificate", "tls_key"])
def test_certificates_that_can_not_be_read_are_named(setting: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("nothing", encoding="utf-8")
    others = {"tls_certificate": tmp_path / "file", "tls_key": tmp_path / "file"} if setting != "tls_ca" else {}
    fields: dict[str, object] = {**others, setting: tmp_path / "missing.pem"}
    with pytest.raises(ConfigError, match=rf"client.{setting}: can't read .*missing.pem \(No such file"):
        Endpoint.of("localhost:1", config(**fields))


def test_certificates_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file.pem"
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"client.tls_ca holds no usable certificate"):
        Endpoint.of("localhost:1", config(tls_ca=path))
    with pytest.raises(ConfigError, match=r"client.tls_certificate .* are no pair"):
        Endpoint.of("localhost:1", config(tls_certificate=path, tls_key=path))
    with pytest.raises(ConfigError, match="set both or neither"):
        Endpoint.of("localhost:1", config(tls_certificate=path))
