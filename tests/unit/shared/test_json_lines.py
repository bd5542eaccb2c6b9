"""Duplicate names in a JSON object are errors, because a value in a user's file must not be lost silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant_graph.bench.texts import read_workloads
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.json_lines import DoubledNameError, read_json

DOUBLED = '{"text": "a", "text": "b"}'


@pytest.mark.parametrize("text", [DOUBLED, '[{"a": {"b": 1, "b": 1}}]', '{"\\u0061": 1, "a": 2}'])
def test_a_name_that_stands_twice_is_an_error(text: str):
    with pytest.raises(DoubledNameError):
        read_json(text)
    assert read_json('[{"a": {"a": 1}}, {"a": 2}]') == [{"a": {"a": 1}}, {"a": 2}]


@pytest.mark.parametrize(("name", "content"), [("corpus.jsonl", DOUBLED), ("corpus.json", f"[{DOUBLED}]")])
def test_a_corpus_with_such_a_record_is_refused_by_its_place(
    name: str, content: str, tmp_path: Path, tokenizer_folder: Path
):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError) as caught:
        GraphBuilder(tokenizer_name=str(tokenizer_folder)).build([path], tmp_path / "graph.pkl")
    assert name in str(caught.value)
    assert not (tmp_path / "graph.pkl").exists()


def test_traces_with_such_a_line_are_refused_by_its_number(tmp_path: Path, tokenizer_folder: Path):
    path = tmp_path / "traces.jsonl"
    path.write_text('{"prompt": "a", "output": "b"}\n{"prompt": "a", "output": "b", "output": "c"}', encoding="utf-8")
    with pytest.raises(CorpusError) as caught:
        read_workloads([path], CorpusTokenizer.load(str(tokenizer_folder)))
    assert f"{path}:2" in str(caught.value)


@pytest.mark.parametrize("command", ["build", "bench engine-loop", "bench replay"])
def test_a_group_of_settings_is_no_flag(command: str):
    from speculant_graph.bench.engine_loop import BenchEngineLoopSettings
    from speculant_graph.settings import load_settings

    with pytest.raises(ConfigError) as raised:
        load_settings(BenchEngineLoopSettings, command, ["--graph", "graph.pkl"])
    assert raised.value.field == "graph"
    assert "CliSettingsSource" not in str(raised.value)
