"""A corpus divided into tasks: their concatenated streams equal the stream of the corpus."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.config import GraphConfig
from speculant_graph.corpus import tasks as tasks_module
from speculant_graph.corpus.source import Source
from speculant_graph.corpus.stream import encode_sources
from speculant_graph.corpus.tasks import Task, divide_corpus
from speculant_graph.corpus.tokenize import CorpusTokenizer

TEXTS = st.lists(
    st.sampled_from(["the parties", " agree", "\n", "\r\n", "é", "語", " ", "1,2", "\nand", "😀"]), max_size=90
)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> CorpusTokenizer:
    return CorpusTokenizer.load(tokenizer_folder)


def ids_of(tokenizer: CorpusTokenizer, sources: list[Source]) -> list[int]:
    parts = encode_sources(tokenizer, sources, GraphConfig(), 1)
    return np.concatenate([part.token_ids for part in parts]).tolist()


@settings(max_examples=80)
@given(
    files=st.lists(st.tuples(st.booleans(), TEXTS), min_size=1, max_size=4),
    task_bytes=st.integers(1, 300),
    window=st.integers(16, 200),
)
def test_the_streams_of_tasks_are_that_of_the_corpus(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: CorpusTokenizer,
    files: list[tuple[bool, list[str]]],
    task_bytes: int,
    window: int,
) -> None:
    folder = tmp_path_factory.mktemp("tasks")
    sources = []
    for number, (is_text, words) in enumerate(files):
        source = Source(folder / (f"{number}.txt" if is_text else f"{number}.jsonl"))
        content = "x" + "".join(words) if is_text else "\n".join(json.dumps({"text": word}) for word in words)
        source.path.write_bytes(content.encode())
        sources.append(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks_module, "_WINDOW_BYTES", window)
        tasks = list(divide_corpus(sources, True, task_bytes))
    ids: list[int] = []
    for task in tasks:
        ids += ids_of(tokenizer, list(pickle.loads(pickle.dumps(task)).sources))
    assert ids == ids_of(tokenizer, [source.reopened() for source in sources])
    completed = [task.completes for task in tasks if task.completes]
    whole = [source for task in tasks for source in task.sources if source.span is None]
    assert {source.path for source in [*completed, *whole]} == {source.path for source in sources}
    assert len(completed) + len(whole) == len(sources)


def test_large_files_are_divided_evenly(tmp_path: Path) -> None:
    source = Source(tmp_path / "a.txt")
    source.path.write_text("the parties agree\n" * 1000, encoding="utf-8")
    spans = [task.sources[0].span for task in divide_corpus([source], True, 4000)]
    assert [round((stop - start) / 1000) for start, stop in filter(None, spans)] == [4, 4, 4, 6]
    assert [task.sources[0].span for task in divide_corpus([source], False, 4000)] == [None]


def test_small_files_are_one_task(tmp_path: Path) -> None:
    sources = [Source(tmp_path / f"{number}.txt") for number in range(5)]
    for source in sources:
        source.path.write_text("the parties", encoding="utf-8")
    assert [len(task.sources) for task in divide_corpus(sources, True, 30)] == [2, 2, 1]
    assert next(divide_corpus(sources, True)) == Task(tuple(sources))


def test_a_tokenizer_is_the_same_in_another_process(tokenizer_folder: Path) -> None:
    for special_tokens in ("text", "parse"):
        tokenizer = CorpusTokenizer.load(tokenizer_folder, special_tokens=special_tokens)
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert copy.fingerprint == tokenizer.fingerprint
        assert (copy.bos_id, copy.eos_id, copy.revision) == (tokenizer.bos_id, tokenizer.eos_id, tokenizer.revision)
        assert copy.encode("the <|endoftext|>") == tokenizer.encode("the <|endoftext|>")
