"""Access to the explorer: settings, keys and foreign host names on real connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculant_drafter.app import is_open
from speculant_graph.config import AccessConfig, ServerConfig
from support.access import access_file, entry
from support.explorer import API, Asker
from support.server import LiveServer, graph_file, serving

OPEN = {"localhost:9": True, "127.0.0.1:9": True, "[::1]:9": True, "": False,
        "0.0.0.0:9": False, "[::]:9": False, "192.0.2.1:9": False, "drafter.internal:9": False}  # fmt: skip


@pytest.fixture
def graphs(tmp_path: Path) -> dict[str, Any]:
    graph_file(tmp_path / "two.pkl", [1, 2, 2] * 8)
    graph_file(tmp_path / "three.pkl", [1, 3, 3] * 8)
    return {"graphs": {"three": tmp_path / "three.pkl"}}


@pytest.fixture
def keyed(tmp_path: Path, graphs: dict[str, Any]) -> Iterator[LiveServer]:
    """A server whose access file permits ``search`` one graph and ``chat`` all graphs."""
    access = access_file(tmp_path / "access.toml", entry("search", "one", 'graphs = ["two"]'), entry("chat", "two"))
    with serving(tmp_path / "two.pkl", tmp_path, file=access, **graphs) as server:
        yield server


def asker_of(server: LiveServer, **headers: str) -> Asker:
    return Asker(server.server.metrics_address, **headers)


def names_in(asker: Asker) -> list[str]:
    answer = asker.get(API)
    assert answer.status == 200, answer.body
    return [graph["name"] for graph in answer.json["graphs"]]


@pytest.mark.parametrize(("address", "expected"), OPEN.items())
def test_it_is_for_this_machine(address: str, expected: bool) -> None:
    assert is_open(ServerConfig(metrics_listen=address), AccessConfig()) == expected
    assert not is_open(ServerConfig(metrics_listen=address), AccessConfig(tls_client_ca=Path("ca.pem")))


def test_it_is_off_where_others_reach_it(tmp_path: Path, graphs: dict[str, Any]) -> None:
    with serving(tmp_path / "two.pkl", tmp_path, metrics_listen="0.0.0.0:0") as server:
        assert not server.server.explorer_url
        for path in ("/explorer/", API):
            answer = asker_of(server).get(path)
            assert (answer.status, "the explorer is off" in answer.error) == (404, True)
        assert asker_of(server).get("/healthz").status == 200


def test_the_key_decides_what_is_seen(keyed: LiveServer) -> None:
    assert asker_of(keyed).get("/explorer/").status == 200, "the page itself holds nothing"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic b25l"}, {"Authorization": "é"}):
        asker = asker_of(keyed, **headers)
        for answer in (asker.get(API), asker.look("two", token_ids=[1])):
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert answer.error
    search, chat = (asker_of(keyed, Authorization=f"Bearer {token}") for token in ("one", "two"))
    assert (names_in(search), names_in(chat)) == (["two"], ["two", "three"])
    assert search.look("two", token_ids=[1]).status == chat.look("three", token_ids=[1]).status == 200
    refused, unknown = search.look("three", token_ids=[1]), search.look("nothing", token_ids=[1])
    assert (refused.status, refused.body) == (unknown.status, unknown.body) == (404, unknown.body)


def test_a_foreign_name_is_refused_unless_there_are_keys(
    keyed: LiveServer, tmp_path: Path, graphs: dict[str, Any]
) -> None:
    port = keyed.server.metrics_address.rpartition(":")[2]
    good = [f"127.0.0.1:{port}", f"LOCALHOST:{port}", "[::1]:80", "localhost"]
    bad = [f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example:80", "192.0.2.7:1", "", "[::1"]
    (tmp_path / "open").mkdir()
    with serving(tmp_path / "two.pkl", tmp_path / "open") as server:
        for host, expected in {**dict.fromkeys(good, 200), **dict.fromkeys(bad, 403)}.items():
            answer = asker_of(server, Host=host).get(API)
            assert answer.status == expected, host
            if expected == 403:
                assert "localhost" in answer.error
                assert asker_of(server, Host=host).look("two", token_ids=[]).status == 403
    for host in bad:
        assert asker_of(keyed, Host=host, Authorization="Bearer two").get(API).status == 200
