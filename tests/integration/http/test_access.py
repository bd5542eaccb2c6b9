"""Access to the API: keys, certificates, and encrypted connections."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx2
import openai
import pytest

from speculant_verifier.decoder import SpeculativeDecoder
from support.access import Certificates, entry, policy
from support.http_api import MODEL, Api, serving, tiny_decoder

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


def get(api: Api, context: ssl.SSLContext, **headers: str) -> httpx2.Response:
    with httpx2.Client(verify=context) as client:
        return client.get(f"https://{api.address}/v1/models", headers=headers)


def test_encrypted(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    with serving(decoder, tls=files.server) as api:
        assert get(api, files.context()).status_code == 200
        with pytest.raises(httpx2.HTTPError):
            api.get("/v1/models")
        client = api.client(base_url=f"https://{api.address}/v1", http_client=httpx2.Client(verify=files.context()))
        assert client.completions.create(**BODY).choices


def test_client_certificates(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    clients = policy(
        tmp_path / "access.toml",
        entry("ann", certificate="ann.example"),
        entry("bob", "key-of-bob", certificate="bob.example"),
    )
    with serving(decoder, clients, tls={**files.server, "tls_client_ca": files.ca}) as api:
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
        entry("dan", "key-of-dan", 'graphs = ["contracts"]'),
        entry("cid", "key-of-cid", 'tenants = ["x", "y"]'),
    )
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 60, "temperature": 1.0, "seed": 3, "ignore_eos": True}

    def accepted(api: Api, key: str, **options: object) -> int:
        headers = {"authorization": f"Bearer {key}"}
        answer = api.post("completions", {**body, "speculant": options}, headers=headers).json()
        return int(answer["speculant"]["accepted"])

    with tiny_decoder(strategy="tree") as decoder, serving(decoder, allowed) as api:
        first = accepted(api, "key-of-ann", learn=True)
        assert accepted(api, "key-of-ann", learn=False) > first + 10
        assert accepted(api, "key-of-bob", learn=True) <= first + 5  # another tenant, which has learned nothing yet
        assert accepted(api, "key-of-cid", tenant="x", learn=True) <= first + 5
        assert accepted(api, "key-of-cid", tenant="x") > first + 10
        assert accepted(api, "key-of-cid", tenant="y") <= first + 5
        for key, options, status, param in (
            ("key-of-ann", {"tenant": "bob"}, 403, "speculant.tenant"),
            ("key-of-cid", {}, 403, "speculant.tenant"),
            ("key-of-dan", {"graph": "code"}, 403, "speculant.graph"),
            ("key-of-dan", {"graphs": ["contracts", "code"]}, 403, "speculant.graph"),
            ("key-of-ann", {"graphs": ["contracts"], "graph": "contracts"}, 400, "speculant.graphs"),
            ("key-of-ann", {"tenant": ""}, 400, "speculant.tenant"),
        ):
            answer = api.post("completions", {**body, "speculant": options}, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["param"] == param
