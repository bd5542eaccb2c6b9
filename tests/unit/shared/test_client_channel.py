"""Address, certificates and tokens: mistakes are reported when a client is made, with a fix."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import ConfigError
from speculant_graph.rpc.channel import Endpoint

SOCKET = "unix:///tmp/d.sock"


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


def config(address: str = SOCKET, **fields: object) -> ClientConfig:
    return ClientConfig.model_validate({"address": address, **fields})


@pytest.mark.parametrize("address", ["", "drafter", "a:1,b:2"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DrafterClient(config(address), tokenizer=None, draft=DraftConfig())
    assert caught.value.field == "address"


@pytest.mark.parametrize("address", ["10.0.0.7:50051", "drafter.example:50051", "[2001:db8::1]:50051", "127.evil:1"])
def test_a_token_does_not_travel_unencrypted(address: str, trusted: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint.of(address, config(token="secret"))
    assert caught.value.field == "client.token"
    encrypted = config(token="secret", tls_ca=trusted)
    assert Endpoint.of(address, encrypted).metadata == (("authorization", "Bearer secret"),)


@pytest.mark.parametrize("address", [SOCKET, "localhost:50051", "127.0.0.1:50051", "[::1]:50051"])
def test_a_token_may_travel_within_this_machine(address: str) -> None:
    endpoint = Endpoint.of(address, config(token="secret"))
    assert endpoint.metadata == (("authorization", "Bearer secret"),)
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize("token", ["", "two words", "line\n", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n"])
def test_tokens_that_no_header_can_hold_are_refused(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint.of(SOCKET, config(token=token))
    assert caught.value.field == "client.token"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tls_ca": "missing.pem"}, r"client.tls_ca: '.*missing.pem': No such file"),
        ({"tls_ca": "text"}, r"client.tls_ca: '.*text' holds no usable certificate"),
        (
            {"tls_certificate": "missing.pem", "tls_key": "text"},
            r"client.tls_certificate: .*missing.pem.*: No such file",
        ),
        ({"tls_certificate": "text", "tls_key": "missing.pem"}, r"client.tls_key: '.*missing.pem' are not a pair"),
        ({"tls_certificate": "text", "tls_key": "text"}, r"client.tls_certificate: .* are not a pair"),
        ({"tls_certificate": "text"}, "set both or neither"),
    ],
)
def test_files_that_are_no_certificates_are_named(fields: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("nothing", encoding="utf-8")
    # Promised behaviour: the message names the file and the error.
    with pytest.raises(ConfigError, match=message):
        Endpoint.of("localhost:1", config(**{name: tmp_path / file for name, file in fields.items()}))
