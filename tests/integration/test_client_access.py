"""A client's certificates and token, at a sidecar that wants both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from loguru import logger

from speculant_graph.errors import AccessError, DrafterUnavailableError
from speculant_graph.types import SequenceStep
from support.clients import make_client
from support.server import graph_file, serving

STEP = SequenceStep(1, [1, 2], 4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificates of a server, of its client and of a stranger."""
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("verifier.example")
    found = {}
    for name, blob in (
        ("ca", authority.cert_pem),
        ("stranger", trustme.CA().cert_pem),
        ("server_certificate", server.cert_chain_pems[0]),
        ("server_key", server.private_key_pem),
        ("certificate", client.cert_chain_pems[0]),
        ("key", client.private_key_pem),
    ):
        found[name] = folder / f"{name}.pem"
        blob.write_to_path(found[name])
    return found


@pytest.fixture(scope="module")
def address(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has a certificate, wants one, and a token."""
    folder = tmp_path_factory.mktemp("server")
    access_file = folder / "access.toml"
    digest = hashlib.sha256(b"secret").hexdigest()
    access_file.write_text(f'[[clients]]\nname = "verifier"\ntoken_sha256 = "{digest}"\n', encoding="utf-8")
    access_file.chmod(0o600)
    with serving(
        graph_file(folder / "graph.pkl", [1, 2, 3] * 8),
        folder,
        client={"tls_ca": files["ca"]},
        listen="127.0.0.1:0",
        tls_certificate=files["server_certificate"],
        tls_key=files["server_key"],
        tls_client_ca=files["ca"],
        file=access_file,
    ) as server:
        yield server.address


def credentials(files: dict[str, Path], **fields: object) -> dict[str, Any]:
    mine = {"tls_ca": "ca", "tls_certificate": "certificate", "tls_key": "key"}
    given = {"token": "secret"} | mine | fields
    return {name: files.get(value, value) if isinstance(value, str) else value for name, value in given.items()}


def test_certificates_and_tokens_travel_with_every_call(address: str, files: dict[str, Path]) -> None:
    with make_client(address, strict=True, **credentials(files)) as client:
        client.open(1)
        assert client.draft([STEP])[0].token_ids == (3, 1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"tls_ca": "stranger"}, DrafterUnavailableError, "UNAVAILABLE.*(?i:certificate|handshake|ssl)"),
        ({"token": "wrong"}, AccessError, "UNAUTHENTICATED"),
        ({"tls_certificate": None, "tls_key": None}, DrafterUnavailableError, "UNAVAILABLE"),
    ],
)
def test_wrong_credentials_do_not_look_like_a_slow_server(
    address: str, files: dict[str, Path], fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    texts: list[str] = []
    logger.enable("speculant_graph.client")
    sink = logger.add(lambda line: texts.append(line.record["message"]), level="WARNING")
    with make_client(address, strict=True, **credentials(files, **fields)) as client:
        with pytest.raises(kind, match=message):
            client.open(1)
        assert not client.draft([STEP])[0]
        assert client.state == "unavailable"
    logger.remove(sink)
    logger.disable("speculant_graph.client")
    assert len([text for text in texts if "no drafts from the drafter" in text]) == 1
    assert not any("secret" in text for text in texts)
