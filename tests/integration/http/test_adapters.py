"""Adapters over HTTP: for administrators that an access file names, and for nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from speculant_graph.errors import DraftLimitError
from speculant_graph.serving.access import AccessPolicy
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapter_files import read_adapter
from support.adapters import adapted_decoder, adapter_folders
from support.http_api import Api, entry, policy, serving

ADMIN, CLIENT = {"authorization": "Bearer key-of-ann"}, {"authorization": "Bearer key-of-bob"}
PATHS = (("GET", ""), ("POST", "/load"), ("POST", "/rollback"))


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SpeculativeDecoder, dict[str, Path]]]:
    folder = tmp_path_factory.mktemp("adapters")
    folders = adapter_folders(folder)
    with adapted_decoder(folder, folders) as decoder:
        yield decoder, folders


@pytest.fixture
def rights(tmp_path: Path) -> AccessPolicy:
    ann = entry("ann", "key-of-ann") + "\nadmin = true"
    return policy(tmp_path / "access.toml", ann, entry("bob", "key-of-bob"))


def call(api: Api, method: str, path: str, headers: dict[str, str], body: object = None) -> tuple[int, dict]:
    answer = api.http.request(method, f"/admin/adapters{path}", json=body, headers=headers)
    return answer.status_code, answer.json()


def test_an_administrator_swaps(adapted, rights) -> None:
    decoder, folders = adapted
    digest = read_adapter(folders["small"]).digest
    with serving(decoder, rights) as api:
        status, state = call(api, "GET", "", ADMIN)
        assert (status, state["names"], state["previous"]) == (200, ["small", "random", "other"], None)
        assert (state["present"], state["acceptance"]) == ({"name": "", "sha256": ""}, None)
        status, state = call(api, "POST", "/load", ADMIN, {"adapter": "small"})
        assert (status, state["present"]) == (200, {"name": "small", "sha256": digest})
        assert state["previous"] == {"name": "", "sha256": ""}
        for body, complaint in (
            ({"adapter": "other"}, "is for the model 'another'"),
            ({"adapter": "/etc"}, "there is no adapter of this name; those of the settings are: small, random, other"),
            ({}, "adapter is missing, or null; give it"),
            ({"adapter": "small", "folder": "x"}, "unknown: 'folder'"),
        ):
            status, answer = call(api, "POST", "/load", ADMIN, body)
            assert (status, complaint in answer["error"]["message"]) == (400, True), answer
        assert call(api, "GET", "", ADMIN)[1]["present"]["name"] == "small"
        status, state = call(api, "POST", "/rollback", ADMIN)
        assert (status, state["present"]["name"], state["previous"]) == (200, "", None)
        status, answer = call(api, "POST", "/rollback", ADMIN)
        assert (status, "no adapter to go back to" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_nobody_else_does(adapted, rights, method: str, path: str) -> None:
    decoder, _ = adapted
    body = {"adapter": "small"} if path == "/load" else None
    with serving(decoder, rights) as api:
        assert call(api, method, path, {}, body)[0] == 401
        status, answer = call(api, method, path, CLIENT, body)
        assert (status, "administrators" in answer["error"]["message"]) == (403, True)
    with serving(decoder) as api:  # no access file: the API is for everybody, adapters are not
        assert call(api, method, path, {}, body)[0] == 403
    assert decoder.adapters is not None
    assert decoder.adapters.state.present.name == ""


def test_a_second_load_and_no_draft_model(adapted, rights, decoder, monkeypatch) -> None:
    own, _ = adapted

    def busy(name: str) -> None:
        raise DraftLimitError("another adapter is being loaded; try again in 1 s", 1.0)

    monkeypatch.setattr(own.adapters, "load", busy)
    with serving(own, rights) as api:
        status, answer = call(api, "POST", "/load", ADMIN, {"adapter": "small"})
        assert (status, answer["error"]["code"]) == (429, "queue_full")
    with serving(decoder, rights) as api:
        status, answer = call(api, "GET", "", ADMIN)
        assert (status, "--draft-model" in answer["error"]["message"]) == (404, True)
