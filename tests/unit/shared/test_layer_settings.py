"""Settings for layers: how several graphs are named, and which combinations are refused."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import CliVariadicArg

from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.engines.factory import EngineSettings, load_engine_settings, open_sessions
from speculant_graph.errors import ConfigError, SpeculantError, TokenizerMismatchError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.layers import load_layers
from speculant_graph.settings import CommandSettings, GraphPaths, load_settings
from speculant_graph.types import Fingerprint

TOKENIZER = Fingerprint("test", "00" * 32, 100)
OTHER = Fingerprint("other", "11" * 32, 100)


class Variadic(CommandSettings):
    """Settings of benchmarks, which have no positional arguments."""

    graph_path: CliVariadicArg[GraphPaths] = []  # noqa: RUF012


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with the graphs 0.pkl to 4.pkl, and other.pkl with another tokenizer."""
    monkeypatch.chdir(tmp_path)
    for index in range(5):
        text = [index, *range(10 * index + 20, 10 * index + 30)] * 4
        build_from_token_ids(text, TOKENIZER, max_order=3).save(f"{index}.pkl")
    build_from_token_ids([1, 2, 3] * 4, OTHER, max_order=3).save("other.pkl")
    return tmp_path


@pytest.mark.parametrize("names", [["a.pkl"], ["a.pkl", "b,c.pkl"], ["[a].pkl"], ['["a"].pkl', "é.pkl"]])
def test_every_source_names_one_or_several(names: list[str], elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Path(name) for name in names]
    repeated = [argument for name in names for argument in ("--graph", name)]
    for kind in (EngineSettings, Variadic):
        assert load_settings(kind, "x", repeated).graph_path == paths
    assert load_settings(Variadic, "x", ["--graph", *names]).graph_path == paths
    given: list[Any] = [names, *names[: len(names) == 1]]
    for value in given:
        assert load_engine_settings({"graph_path": value}, "x").graph_path == paths
        monkeypatch.setenv("SPECULANT_GRAPH_PATH", value if isinstance(value, str) else json.dumps(value))
        assert load_settings(EngineSettings, "x", []).graph_path == paths
        monkeypatch.delenv("SPECULANT_GRAPH_PATH")


@pytest.mark.parametrize("value", [5, [5], {"a": 1}, True])
def test_what_is_no_path_is_refused(value: object, elsewhere: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_engine_settings({"graph_path": value}, "x")
    assert (caught.value.field, "\n" in str(caught.value)) == ("graph_path", False)


def test_an_engine_drafts_from_all_of_them(elsewhere: Path) -> None:
    settings = load_engine_settings({"graph_path": ["1.pkl", "2.pkl"]}, "x")
    for text, first in (([1, 30, 31, 32], 33), ([2, 40, 41, 42], 43)):
        with closing(open_sessions(settings, TOKENIZER, most_drafted=3, vocabulary_size=100)) as sessions:
            assert sessions.draft([text], [3]).lists()[0][:1] == [first]


@pytest.mark.parametrize(
    ("names", "kind", "field"),
    [
        (["1.pkl", "1.pkl"], ConfigError, "graph"),
        (["1.pkl", "./1.pkl"], ConfigError, "graph"),
        ([f"{index}.pkl" for index in range(5)], ConfigError, "graph"),
        (["1.pkl", "other.pkl"], TokenizerMismatchError, ""),
    ],
)
def test_layers_that_can_not_be_are_refused_alike(
    names: list[str], kind: type[SpeculantError], field: str, elsewhere: Path
) -> None:
    settings = load_engine_settings({"graph_path": names}, "x")
    for refused in (
        lambda: load_layers(names),
        lambda: open_sessions(settings, TOKENIZER, most_drafted=3, vocabulary_size=100),
    ):
        with pytest.raises(kind) as caught:
            refused()
        assert caught.value.field == field
        assert caught.value.fix


def test_a_graph_is_one_layer_once(elsewhere: Path) -> None:
    (graph,) = load_layers(["1.pkl"], TOKENIZER)
    with pytest.raises(ConfigError):
        SessionDrafter([graph, graph])
    with pytest.raises(TokenizerMismatchError):
        load_layers(["1.pkl"], OTHER)
