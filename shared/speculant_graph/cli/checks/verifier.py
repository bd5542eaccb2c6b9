"""Verifiers that serve, over gRPC or HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request

from speculant_graph.cli.checks.drafter import check_health, check_socket
from speculant_graph.cli.checks.finding import Finding
from speculant_graph.config import ClientConfig
from speculant_graph.rpc.urls import checked_url, open_url
from speculant_graph.version import VERSION

_PATIENCE_S = 10.0
_MOST_BYTES = 1 << 22


def check_verifier(address: str, config: ClientConfig) -> Iterator[Finding]:
    """Check a verifier's gRPC address.

    Args:
        address: as ``service.listen`` has it; empty: not looked at.
        config: encryption and credentials.

    Raises:
        ConfigError: the address or a credential is wrong.
    """
    if not address:
        yield Finding("verifier", "skip", "not named; --verifier ADDRESS")
        return
    from speculant_graph.rpc.channel import Endpoint

    endpoint = Endpoint.of(address, config)
    findings = list(check_socket("verifier socket", address))
    yield from findings
    if all(finding.status != "fail" for finding in findings):
        yield from check_health(endpoint, "verifier", not_serving="fail")


def check_url(url: str, api_key: str) -> Iterator[Finding]:
    """Check a verifier's HTTP API.

    Args:
        url: where it begins, such as ``http://127.0.0.1:8000/v1``; empty: not looked at.
        api_key: for servers that want one, else empty.

    Raises:
        ConfigError: the address is none, or the key would travel readable for all.
    """
    if not url:
        yield Finding("http", "skip", "not named; --url http://127.0.0.1:8000/v1")
        return
    url = checked_url(url, api_key)
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    status, said = _get(f"{root}/healthz")
    if status != 200:
        yield Finding(
            "http", "fail", f"{root}: {said.strip() or status}", "start it, and see its log; check the address"
        )
        return
    yield Finding("http", "ok", f"{root} serves")
    status, said = _get(f"{url}/models", api_key)
    if status in (401, 403):
        yield Finding("http models", "fail", "it wants a key, or another", "set SPECULANT_API_KEY")
        return
    try:
        names = [str(each["id"]) for each in json.loads(said)["data"]]
    except (ValueError, TypeError, LookupError):
        yield Finding("http models", "fail", f"{url} lists no models ({status})", "give the address up to /v1")
        return
    yield Finding("http models", "ok", ", ".join(names))
    yield from _version(root)


def _version(root: str) -> Iterator[Finding]:
    status, said = _get(f"{root}/openapi.json")
    try:
        theirs: Any = json.loads(said)["info"]["version"] if status == 200 else ""
    except (ValueError, TypeError, LookupError):
        theirs = ""
    if theirs == VERSION:
        yield Finding("http version", "ok", f"{theirs}, as here")
    elif theirs:
        yield Finding(
            "http version", "warn", f"{theirs} there, {VERSION} here", "install the same release on both sides"
        )


def _get(url: str, api_key: str = "") -> tuple[int, str]:
    """Return status and body; status 0 and the reason if there is no answer."""
    request = Request(url)
    if api_key:
        request.add_unredirected_header("Authorization", f"Bearer {api_key}")
    try:
        with open_url(request, _PATIENCE_S) as answer:
            return answer.status, answer.read(_MOST_BYTES).decode(errors="replace")
    except HTTPError as error:
        with error:
            return error.code, error.read(_MOST_BYTES).decode(errors="replace")
    except (URLError, HTTPException, OSError, ValueError) as error:
        return 0, f"no answer ({getattr(error, 'reason', None) or error})"
