"""The draft model for llama-cpp-python, and the fingerprint of the tokenizer in a GGUF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.llama_cpp import SpeculantDraft, gguf_fingerprint
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Fingerprint
from speculant_verifier.demo.run import MODEL_FOLDER
from support.gguf_file import write_gguf

_TEXT = [*range(10, 40)] * 20


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(MODEL_FOLDER, path)
    return path


@pytest.fixture(scope="module")
def fingerprint() -> Fingerprint:
    return CorpusTokenizer.load(MODEL_FOLDER).fingerprint


def test_a_gguf_file_has_the_identity_of_its_tokenizer(gguf: Path, fingerprint: Fingerprint) -> None:
    found = gguf_fingerprint(gguf)
    assert (found.sha256, found.vocabulary_size) == (fingerprint.sha256, fingerprint.vocabulary_size)


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"no model at all" * 100])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError):
        gguf_fingerprint(path)


def test_texts_come_one_after_another(gguf: Path, fingerprint: Fingerprint, tmp_path: Path) -> None:
    graph = tmp_path / "graph.pkl"
    build_from_token_ids(_TEXT, fingerprint).save(graph)
    draft = SpeculantDraft(gguf, 6, graph_path=graph, draft={"max_depth": 24})
    draft.sessions._budget = None  # drafts are not trimmed
    text = np.array([*range(10, 16)], np.intc)
    assert draft(text).tolist() == [16, 17, 18, 19, 20, 21]
    assert draft(np.append(text, [16, 17, 3]).astype(np.intc)).dtype == np.intc
    assert draft.sessions.counts.sequences == 1
    assert draft(np.array([20, 21, 22], np.intc)).tolist() == [23, 24, 25, 26, 27, 28]
    assert draft.sessions.counts.sequences == 2
    draft.finish()
    assert draft.sessions.counts.running == 0
    draft.close()


def test_a_graph_of_another_tokenizer_is_refused(gguf: Path, tmp_path: Path) -> None:
    build_from_token_ids(_TEXT, Fingerprint("other", "11" * 32, 4_096)).save(tmp_path / "other.pkl")
    with pytest.raises(TokenizerMismatchError):
        SpeculantDraft(gguf, graph_path=tmp_path / "other.pkl")
    with pytest.raises(TokenizerMismatchError):
        SpeculantDraft(gguf, graph_path=tmp_path / "other.pkl", tokenizer=MODEL_FOLDER)
