"""Building graphs from files and from token ids."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError, GraphError, GraphFileError
from speculant_graph.files import workspace
from speculant_graph.graph.build.builder import BuildProgress, GraphBuilder, build_from_token_ids
from speculant_graph.graph.build.count import fit_into
from speculant_graph.graph.build.keys import KeyLayout, emitter_bytes
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint
from support.graphs import counts_of

FINGERPRINT = Fingerprint("test", "00" * 32, 10)


def small_graph(max_order: int = 2) -> NgramGraph:
    # 1 2 3 | 1 2 4 | 1 2 4, with 9 at the end
    return build_from_token_ids([1, 2, 3, 1, 2, 4, 1, 2, 4, 9], FINGERPRINT, max_order=max_order)


def test_look_ups_of_what_is_not_in_the_graph() -> None:
    graph = small_graph()
    assert graph.metadata.num_tokens == 10
    assert graph.metadata.built_at.endswith("+00:00")
    assert graph.match_order([1, 2], 3) is graph.match_order([1, 2], 0) is None
    assert graph.probability([1, 2], 9) == graph.probability([9], 1) == 0
    for token_id in (-1, 10, 2**31, 2**40, -(2**70)):
        assert graph.count([token_id]) == graph.probability([1, 2], token_id) == 0
    assert (1, 2) in graph.context_index
    for key in ((1.0,), ("1",), (1, (2,)), ([1],), (None,), (), [1], 1, "1", (1, 2, 3)):
        assert key not in graph.context_index


@pytest.mark.parametrize("jobs", [1, 64, 1024])
@pytest.mark.parametrize(("vocabulary_size", "max_order"), [(300, 1), (201_088, 10)])
def test_jobs_and_parts_fit_into_memory(jobs: int, vocabulary_size: int, max_order: int) -> None:
    layout = KeyLayout.of(vocabulary_size, max_order)
    free = 300_000_000
    num_jobs, max_keys = fit_into(free, 10**9, layout, jobs)
    per_job = 2 * layout.bytes * max_keys + emitter_bytes(layout) + 16 * vocabulary_size
    assert 1 <= num_jobs <= jobs
    assert num_jobs * per_job < free
    assert num_jobs == jobs or (num_jobs + 2) * per_job > 200_000_000, "no fewer than must be"


def test_bad_streams_are_refused() -> None:
    with pytest.raises(CorpusError):
        build_from_token_ids([], FINGERPRINT)
    with pytest.raises(GraphError):
        build_from_token_ids([1, 10], FINGERPRINT)
    with pytest.raises(GraphError):
        build_from_token_ids([1, -1], FINGERPRINT)
    for wrong in ([1.5], [float("nan")], [[1, 2]], ["1"]):
        with pytest.raises(GraphError):
            build_from_token_ids(wrong, FINGERPRINT)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        build_from_token_ids([1], FINGERPRINT, max_order=11)
    assert caught.value.field == "graph.max_order"


def test_only_graphs_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    for content in (b"somebody's text", pickle.dumps({"somebody's": "values"}), pickle.dumps([small_graph()])):
        path.write_bytes(content)
        with pytest.raises(GraphFileError):
            small_graph().save(path)
        assert path.read_bytes() == content
    path.write_bytes(b"")
    small_graph().save(path)


def test_documents_are_wrapped_and_joined(tmp_path: Path, tokenizer_folder: Path, sample_text: str) -> None:
    first, empty, second = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    first.write_text(sample_text * 30, "utf-8")
    empty.touch()
    second.write_text("The end", "utf-8")
    reports: list[BuildProgress] = []
    builder = GraphBuilder(str(tokenizer_folder), max_order=3, chunk_size=1024)
    graph = builder.build_from_files([first, empty, second], progress=reports.append)

    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    stream = [0, *tokenizer.encode(sample_text * 30), 1, 0, *tokenizer.encode("The end"), 1]
    expected = build_from_token_ids(stream, tokenizer.fingerprint, max_order=3)
    assert counts_of(graph) == counts_of(expected)
    assert graph.metadata.tokenizer == tokenizer.fingerprint
    assert [file.name for file in graph.metadata.corpus_files] == [str(first), str(empty), str(second)]

    for phase in ("tokenize", "count", "save"):
        last = [report for report in reports if report.phase == phase][-1]
        assert last.done == last.total
    assert builder.report is not None
    assert builder.report.total_s >= builder.report.tokenize_s > 0
    assert builder.report.peak_anon_bytes > 1_000_000


@pytest.mark.parametrize("output", ["none/graph.pkl", "."])
def test_a_place_that_can_not_be_written_is_refused_before_the_work(tmp_path: Path, output: str) -> None:
    with pytest.raises(GraphFileError):
        GraphBuilder("there is no such tokenizer").build([tmp_path], tmp_path / output)


def test_what_a_killed_build_left_is_swept_and_what_runs_is_left_alone(
    tmp_path: Path, tokenizer_folder: Path, sample_text: str
) -> None:
    (tmp_path / "a.txt").write_text(sample_text, "utf-8")
    output = tmp_path / "graph.pkl"
    left_over = tmp_path / ".graph.pkl.building" / "files" / "tokens"
    left_over.parent.mkdir(parents=True)
    left_over.touch()
    with workspace(output) as running:
        assert not list(running.iterdir())
        with pytest.raises(GraphFileError):
            GraphBuilder(tokenizer_folder).build(tmp_path / "a.txt", output)
        assert running.is_dir()
    GraphBuilder(tokenizer_folder).build(tmp_path / "a.txt", output)
    assert {file.name for file in tmp_path.iterdir()} == {"a.txt", "graph.pkl"}
