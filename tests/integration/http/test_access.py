"""Who may use the API: keys, certificates, and encrypted connections."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import trustme

from speculant_verifier.decoder import SpeculativeDecoder
from support.http_api import MODEL, Api, entry, policy, serving, tiny_decoder

BODY = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}


def test_keys(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    now = [policy(tmp_path / "access.toml", entry("ann", "key-of-ann"), entry("bob", "key-of-bob"))]
    with serving(decoder, lambda: now[0]) as api:
        assert api.client("key-of-ann").completions.create(**BODY).choices
        assert api.client("key-of-bob").models.list().data
        for key in ("key-of-cid", "KEY-OF-ANN"):
            with pytest.raises(openai.AuthenticationError) as caught:
                api.client(key).completions.create(**BODY)
            assert caught.value.code == "invalid_api_key"
        for headers in ({}, {"authorization": "Basic a2V5"}, {"authorization": "Bearer"}):
            response = api.post("completions", {"nonsense": 1}, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-request-id"]
            assert "key-of" not in response.text
        for path in ("/v1/models", f"/v1/models/{MODEL}", "/v1/nothing"):
            assert api.get(path).status_code == 401
        for path in ("/healthz", "/metrics", "/openapi.json"):
            assert api.get(path).status_code == 200
        now[0] = policy(tmp_path / "other.toml", entry("cid", "key-of-cid"))
        assert api.client("key-of-cid").models.list().data
        with pytest.raises(openai.AuthenticationError):
            api.client("key-of-ann").models.list()


class Files:
    """Certificates of a server and of its clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.certificate, self.key, self.ca = folder / "server.pem", folder / "server.key", folder / "ca.pem"
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.ca.write_bytes(self.authority.cert_pem.bytes())

    def context(self, name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if name:
            self.authority.issue_cert(name, common_name=name).configure_cert(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def get(api: Api, context: ssl.SSLContext, **headers: str) -> httpx2.Response:
    with httpx2.Client(verify=context) as client:
        return client.get(f"https://{api.address}/v1/models", headers=headers)


def test_encrypted(decoder: SpeculativeDecoder, files: Files) -> None:
    tls: dict[str, Any] = {"tls_certificate": files.certificate, "tls_key": files.key}
    with serving(decoder, tls=tls) as api:
        assert get(api, files.context()).status_code == 200
        with pytest.raises(httpx2.HTTPError):
            api.get("/v1/models")
        client = api.client(base_url=f"https://{api.address}/v1", http_client=httpx2.Client(verify=files.context()))
        assert client.completions.create(**BODY).choices


def test_client_certificates(decoder: SpeculativeDecoder, files: Files, tmp_path: Path) -> None:
    tls = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_client_ca": files.ca}
    clients = policy(
        tmp_path / "access.toml",
        entry("ann", certificate="ann.example"),
        entry("bob", "key-of-bob", certificate="bob.example"),
    )
    with serving(decoder, clients, tls=tls) as api:
        assert get(api, files.context("ann.example")).status_code == 200
        assert get(api, files.context("bob.example")).status_code == 401
        assert get(api, files.context("bob.example"), authorization="Bearer key-of-bob").status_code == 200
        assert get(api, files.context("ann.example"), authorization="Bearer key-of-bob").status_code == 401
        assert get(api, files.context("cid.example")).status_code == 401
        with pytest.raises(httpx2.HTTPError):
            get(api, files.context())


def test_tenants_draft_from_what_they_taught(tmp_path: Path) -> None:
    allowed = policy(
        tmp_path / "access.toml",
        entry("ann", "key-of-ann"),
        entry("bob", "key-of-bob"),
        entry("dan", "key-of-dan") + '\ngraphs = ["contracts"]',
        entry("cid", "key-of-cid") + '\ntenants = ["x", "y"]',
    )
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 60, "temperature": 1.0, "seed": 3, "ignore_eos": True}

    def accepted(api: Api, key: str, **options: object) -> int:
        headers = {"authorization": f"Bearer {key}"}
        answer = api.post("completions", {**body, "speculant": options}, headers=headers).json()
        return int(answer["speculant"]["accepted"])

    with tiny_decoder(strategy="tree") as decoder, serving(decoder, allowed) as api:
        first = accepted(api, "key-of-ann", learn=True)
        assert accepted(api, "key-of-ann", learn=False) > first + 10
        assert accepted(api, "key-of-bob", learn=True) <= first + 5  # its own tenant, which nothing was taught yet
        assert accepted(api, "key-of-cid", tenant="x", learn=True) <= first + 5
        assert accepted(api, "key-of-cid", tenant="x") > first + 10
        assert accepted(api, "key-of-cid", tenant="y") <= first + 5
        for key, options, status, param in (
            ("key-of-ann", {"tenant": "bob"}, 403, "speculant.tenant"),
            ("key-of-cid", {}, 403, "speculant.tenant"),
            ("key-of-dan", {"graph": "code"}, 403, "speculant.graph"),
            ("key-of-ann", {"tenant": ""}, 400, "speculant.tenant"),
        ):
            answer = api.post("completions", {**body, "speculant": options}, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["param"] == param
