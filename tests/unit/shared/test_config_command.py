"""``speculant config show`` is correct and complete, and shows no secrets."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.cli.config import _toml_value
from speculant_graph.cli.main import main
from speculant_graph.settings import SECTIONS


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, without settings."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("SPECULANT_"):
            monkeypatch.delenv(name)
    return tmp_path


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["config", "show", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def origins(toml: str) -> dict[str, str]:
    """Return the origin of each setting, by "section.name"."""
    found, section = {}, ""
    for line in toml.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line:
            found[f"{section}.{line.removeprefix('# ').split(' ')[0]}"] = line.rpartition("  # ")[2]
    return found


def test_the_defaults_are_the_example_of_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    toml = show(capsys)
    example = Path(__file__).parents[3] / "deploy" / "speculant.toml"
    assert tomllib.loads(toml) == tomllib.loads(example.read_text(encoding="utf-8"))
    assert tuple(tomllib.loads(toml)) == SECTIONS
    assert set(origins(toml).values()) == {"default"}
    assert '# tls_certificate = ""  # default\n' in toml
    assert main(["config", "example"]) == 0
    assert capsys.readouterr().out == example.read_text(encoding="utf-8"), "write it with speculant config example"


def test_origins_and_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    (elsewhere / "speculant.toml").write_text(
        "[graph]\nmax_order = 4\nhf_token = 'hush'\nchunk_size = 3000\n[server.graphs]\na = 'a.pkl'\n", encoding="utf-8"
    )
    monkeypatch.setenv("SPECULANT_GRAPH__CHUNK_SIZE", "2000")
    monkeypatch.setenv("speculant_draft__k", "5")
    monkeypatch.setenv("SPECULANT_CLIENT__TOKEN", "hush")
    monkeypatch.setenv("SPECULANT_SERVER__GRAPHS__B", "b.pkl")
    monkeypatch.setenv("SPECULANT_GENERATION", '{"seed": 7}')
    toml = show(capsys)
    found, settings = origins(toml), tomllib.loads(toml)
    assert {name: origin for name, origin in found.items() if origin != "default"} == {
        "graph.max_order": "speculant.toml",
        "graph.hf_token": "speculant.toml",
        "graph.chunk_size": "environment",
        "draft.k": "environment",
        "client.token": "environment",
        "server.graphs": "environment",
        "generation.seed": "environment",
    }
    assert (settings["graph"]["max_order"], settings["graph"]["chunk_size"], settings["draft"]["k"]) == (4, 2000, 5)
    assert (settings["server"]["graphs"], settings["generation"]["seed"]) == ({"a": "a.pkl", "b": "b.pkl"}, 7)
    assert "hf_token" not in settings["graph"]
    assert '# hf_token = "********"  # speculant.toml\n' in toml
    assert "hush" not in toml


def test_one_section_of_a_named_file(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    (elsewhere / "speculant.toml").write_text("[server]\nmax_session_memory = 1000009\n", encoding="utf-8")
    (elsewhere / "other.toml").write_text("[server]\nmax_session_memory = 1000002\n", encoding="utf-8")
    toml = show(capsys, "--config", "other.toml", "--section", "server")
    assert tomllib.loads(toml).keys() == {"server"}
    assert "max_session_memory = 1000002  # other.toml\n" in toml


@pytest.mark.parametrize(
    ("content", "variables", "complaint"),
    [
        ("[graph]\nmax_order = 99\n", {}, "config: speculant.toml: graph.max_order: must be less than or equal to 10"),
        ("[draft]\nbeam_width = 4\n", {}, "speculant.toml: there is no setting draft.beam_width; --help lists"),
        ("k = 4\n", {}, "config: 'speculant.toml': k is in no section; write it under one, such as [draft]"),
        ("[server.graphs]\ndocs = 3\n", {}, "config: speculant.toml: server.graphs.docs: must be a path (got 3)"),
        ("[grahp]\n", {}, "a table of 'speculant.toml' is for an unknown section [grahp]; it may be: graph, draft"),
        ("", {"SPECULANT_DRAFT__K__X": "3"}, "config: draft.k: must be a whole number\n"),
        (
            "",
            {"SPECULANT_MOON__K": "3"},
            "SPECULANT_MOON__K is for an unknown section [moon]; it may be: graph",
        ),
        ("", {"SPECULANT_DRAFT_K": "3"}, "SPECULANT_DRAFT_K sets nothing; write SPECULANT_DRAFT__K"),
        (
            "",
            {"SPECULANT_SERVER__WROKERS": "2"},
            "config: SPECULANT_SERVER__WROKERS: there is no setting server.wrokers; ",
        ),
        ("", {"SPECULANT_DRAFT": "{k}"}, "config: SPECULANT_DRAFT can't be read; lists and tables in variables"),
        (
            "",
            {"SPECULANT_DRAFT__SOURCES": "corpus"},
            "config: SPECULANT_DRAFT__SOURCES can't be read; lists and tables",
        ),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: Path,
    content: str,
    variables: dict[str, str],
    complaint: str,
) -> None:
    (elsewhere / "speculant.toml").write_text(content, encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["config", "show"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert complaint in shown.err


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    assert tomllib.loads(f"x = {_toml_value(value)}") == {"x": value}
