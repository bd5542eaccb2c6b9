"""A client's certificate and token, at a sidecar that requires both."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from speculant_graph.client import SidecarFleet, client_of
from speculant_graph.config import ClientConfig
from speculant_graph.errors import AccessError, DrafterUnavailableError
from speculant_graph.rpc import addresses
from speculant_graph.types import SequenceStep
from support.access import Certificates, access_file, entry
from support.clients import GREEDY, PATIENT, make_client
from support.server import graph_file, serving

STEP = SequenceStep(1, [1, 2], 4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def address(files: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a certificate, which requires a client certificate and a token."""
    folder = tmp_path_factory.mktemp("server")
    settings = {"listen": "127.0.0.1:0", "tls_client_ca": files.ca, **files.server}
    settings["file"] = access_file(folder / "access.toml", entry("verifier", "secret"))
    graph = graph_file(folder / "graph.pkl", [1, 2, 3] * 8)
    with serving(graph, folder, client={"tls_ca": files.ca}, **settings) as server:
        yield server.address


@pytest.fixture(scope="module")
def credentials(files: Certificates) -> dict[str, Any]:
    return {"token": "secret", "tls_ca": files.ca, **files.client}


def test_certificates_and_tokens_travel_with_every_call(address: str, credentials: dict[str, Any]) -> None:
    with make_client(address, strict=True, **credentials) as client:
        client.open(1)
        assert client.draft([STEP])[0].token_ids == (3, 1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"tls_ca": "a stranger"}, DrafterUnavailableError, "UNAVAILABLE.*(?i:certificate|handshake|ssl)"),
        ({"token": "wrong"}, AccessError, "UNAUTHENTICATED"),
        ({"tls_certificate": None, "tls_key": None}, DrafterUnavailableError, "UNAVAILABLE"),
    ],
)
def test_wrong_credentials_do_not_look_like_a_slow_server(
    address: str,
    credentials: dict[str, Any],
    fields: dict[str, Any],
    kind: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    if "tls_ca" in fields:
        fields = {"tls_ca": Certificates(tmp_path).ca}
    texts: list[str] = []
    logger.enable("speculant_graph.client")
    sink = logger.add(lambda line: texts.append(line.record["message"]), level="WARNING")
    with make_client(address, strict=True, **credentials | fields) as client:
        # Promised behaviour: the status distinguishes a wrong key from a slow server.
        with pytest.raises(kind, match=message):
            client.open(1)
        assert not client.draft([STEP])[0]
        assert client.state == "unavailable"
    logger.remove(sink)
    logger.disable("speculant_graph.client")
    assert len([text for text in texts if "no drafts from the drafter" in text]) == 1
    assert not any("secret" in text for text in texts)


@pytest.mark.parametrize(("name", "is_let_in"), [("localhost", True), ("fleet.test", False)])
def test_sidecars_of_a_name_show_its_certificate(
    address: str, credentials: dict[str, Any], name: str, is_let_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(address.rpartition(":")[2])
    found = [(socket.AF_INET, 0, 0, "", ("127.0.0.1", port))]
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_, **__: found)
    config = ClientConfig.model_validate({"address": f"dns:///{name}:{port}", **PATIENT, **credentials})
    with client_of(config, tokenizer=None, draft=GREEDY) as client:
        assert isinstance(client, SidecarFleet)
        assert list(client.clients) == [address], "the certificate is valid for this address, too"
        assert bool(client.draft([STEP])[0]) is is_let_in
