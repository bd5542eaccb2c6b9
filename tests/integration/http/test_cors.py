"""CORS: only pages of the configured origins may call the API and read its responses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.config import ServiceConfig
from speculant_graph.errors import ConfigError, UnavailableError
from speculant_verifier.decoder import SpeculativeDecoder
from support.access import entry, policy
from support.browser import chromium, needs_chromium
from support.http_api import MODEL, Api, serving

OURS, OTHERS = "https://app.example", "https://evil.example"
BODY: dict[str, Any] = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
ALLOWED = "access-control-allow-origin"
KEY = {"authorization": "Bearer key-of-ann"}


def preflight(api: Api, origin: str, method: str = "POST", path: str = "/v1/completions") -> Any:
    asked = {"access-control-request-method": method, "access-control-request-headers": "authorization, x-api-key"}
    return api.http.options(path, headers={"origin": origin, **asked})


def test_pages_of_named_origins_may_call(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    access = policy(tmp_path / "access.toml", entry("ann", "key-of-ann"))
    with serving(decoder, access, cors_origins=[OURS, "http://localhost:3000"]) as api:
        for method in ("GET", "POST", "DELETE"):
            answer = preflight(api, OURS, method)
            assert answer.status_code == 200
            assert answer.headers[ALLOWED] == OURS
            assert method in answer.headers["access-control-allow-methods"]
            assert "x-api-key" in answer.headers["access-control-allow-headers"]
        assert ALLOWED not in preflight(api, OTHERS).headers
        assert preflight(api, OURS, "PUT").status_code == 400

        def statuses(origin: str) -> Iterator[tuple[int, str | None]]:
            head = {"origin": origin}
            for response in (
                api.post("completions", BODY, headers=head | KEY),
                api.post("completions", BODY | {"stream": True}, headers=head | KEY),
                api.post("completions", BODY, headers=head),
                api.post("completions", {}, headers=head | KEY),
                api.post("chat/completions", None, content=b"{", headers=head | KEY),
                api.post("nothing", {}, headers=head | KEY),
                api.get("/v1/completions", headers=head | KEY),
                api.post("completions", None, content=b" " * (5 << 20), headers=head | KEY),
                api.get("/v1/models", headers=head | KEY),
            ):
                assert "Origin" in response.headers["vary"]
                yield response.status_code, response.headers.get(ALLOWED)

        expected = [200, 200, 401, 400, 400, 404, 405, 413, 200]
        assert list(statuses(OURS)) == [(status, OURS) for status in expected]
        assert list(statuses(OTHERS)) == [(status, None) for status in expected]
        response = api.post("completions", BODY, headers=KEY)
        assert response.status_code == 200
        assert ALLOWED not in response.headers
        api.problem = UnavailableError("it starts", fix="try again later")
        response = api.post("completions", BODY, headers={"origin": OURS} | KEY)
        assert (response.status_code, response.headers[ALLOWED]) == (503, OURS)
        exposed = response.headers["access-control-expose-headers"]
        assert {"x-request-id", "retry-after"} <= set(exposed.split(", "))


def test_no_page_may_call_by_default_and_all_may_by_a_star(decoder: SpeculativeDecoder) -> None:
    with serving(decoder) as api:
        assert preflight(api, OURS).status_code == 405
        assert ALLOWED not in api.post("completions", BODY, headers={"origin": OURS}).headers
    with serving(decoder, cors_origins="*") as api:
        assert preflight(api, "null").headers[ALLOWED] == "*"
        assert api.post("completions", BODY, headers={"origin": OURS}).headers[ALLOWED] == "*"


@pytest.mark.parametrize(
    "wrong",
    [
        "app.example",
        f"{OURS}/",
        f"{OURS}/page",
        "https://a.example:443",
        "http://a:80",
        "null",
        "https://*.a",
        "https://",
    ],
)
def test_what_is_no_origin_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceConfig(cors_origins=f"{OURS},{wrong}")
    assert caught.value.field == "service.cors_origins"
    assert f"'{wrong}'" in str(caught.value)


def test_origins_are_compared_as_browsers_write_them() -> None:
    given = "HTTPS://App.Example, http://[::1]:3000 ,tauri://localhost,*"
    assert ServiceConfig(cors_origins=given).cors_origins == (OURS, "http://[::1]:3000", "tauri://localhost", "*")


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def page_server() -> Iterator[str]:
    """Serve the page; yield its origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


ASK = """async ([url, key, body]) => {
    const headers = {"content-type": "application/json", "authorization": `Bearer ${key}`, "x-extra": "1"}
    try {
        const answer = await fetch(url, {method: "POST", headers, body: JSON.stringify(body)})
        return [answer.status, (await answer.text()).slice(0, 6), answer.headers.get("x-request-id") !== null]
    } catch (error) {
        return error.name
    }
}"""


@needs_chromium
def test_a_browser_calls(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    access = policy(tmp_path / "access.toml", entry("ann", "key-of-ann"))
    with page_server() as ours, page_server() as others, serving(decoder, access, cors_origins=ours) as api:
        url = f"{api.url}/v1/completions"
        with chromium() as browser:
            page = browser.new_page()
            page.goto(ours)
            assert page.evaluate(ASK, [url, "key-of-ann", BODY]) == [200, '{"id":', True]
            assert page.evaluate(ASK, [url, "key-of-ann", BODY | {"stream": True}]) == [200, ": noth", True]
            assert page.evaluate(ASK, [url, "wrong", BODY]) == [401, '{"erro', True]
            page.goto(others)
            assert page.evaluate(ASK, [url, "key-of-ann", BODY]) == "TypeError"  # the browser's name of a network error
