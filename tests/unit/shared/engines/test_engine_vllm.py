"""The proposer, called as by vLLM's runner. Only vLLM's functions that return the rank are stubbed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.vllm import SpeculantProposer
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Fingerprint
from speculant_verifier.demo.run import MODEL_FOLDER

_TEXT = [*range(10, 40)] * 20
_MOST = 6
_MAX_LENGTH = 64


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.pkl"
    build_from_token_ids(_TEXT, CorpusTokenizer.load(MODEL_FOLDER).fingerprint).save(path)
    return path


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stub vLLM's functions that return this process's rank."""
    state = SimpleNamespace(rank=0, is_parallel=True)
    module: Any = ModuleType("vllm.distributed")
    module.get_tensor_model_parallel_rank = lambda: state.rank
    module.model_parallel_is_initialized = lambda: state.is_parallel
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.distributed", module)
    return state


def _config(**settings: Any) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            tokenizer=str(MODEL_FOLDER), max_model_len=_MAX_LENGTH, get_vocab_size=lambda: 4_096
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=_MOST),
        additional_config={"speculant": settings} if settings else None,
    )


class _Rows:
    """The arrays of a runner's batch."""

    def __init__(self, num_rows: int) -> None:
        self.tokens = np.zeros((num_rows, _MAX_LENGTH), np.int32)
        self.lengths = np.zeros(num_rows, np.int32)

    def add(self, row: int, *token_ids: int) -> list[int]:
        self.tokens[row, self.lengths[row] : self.lengths[row] + len(token_ids)] = token_ids
        self.lengths[row] += len(token_ids)
        return list(token_ids)


def test_rows_that_decode_get_drafts_and_those_that_read_get_none(graph_path: Path) -> None:
    proposer, rows = SpeculantProposer(_config(graph_path=str(graph_path))), _Rows(2)
    proposer.sessions._budget = None  # drafts are not trimmed
    rows.add(0, *range(10, 20))
    rows.add(1, *range(20, 25))
    drafts = proposer.propose([rows.add(0, 20), []], rows.lengths, rows.tokens)
    assert drafts == [[21, 22, 23, 24, 25, 26], []]
    drafts = proposer.propose([rows.add(0, 21, 22), rows.add(1, 25)], rows.lengths, rows.tokens, slot_mappings=None)
    assert drafts == [[23, 24, 25, 26, 27, 28], [26, 27, 28, 29, 30, 31]]
    assert proposer.sessions.counts.sequences == 2
    proposer.close()


def test_no_draft_is_longer_than_the_model(graph_path: Path) -> None:
    proposer, rows = SpeculantProposer(_config(graph_path=str(graph_path))), _Rows(1)
    proposer.sessions._budget = None  # drafts are not trimmed
    rows.add(0, *_TEXT[: _MAX_LENGTH - 4])
    assert len(proposer.propose([rows.add(0, _TEXT[_MAX_LENGTH - 4])], rows.lengths, rows.tokens)[0]) == 2
    assert proposer.propose([rows.add(0, _TEXT[_MAX_LENGTH - 3])], rows.lengths, rows.tokens)[0] == [_TEXT[62]]
    assert proposer.propose([rows.add(0, 7)], rows.lengths, rows.tokens) == [[]]
    proposer.close()


def test_only_the_first_of_the_ranks_drafts(graph_path: Path, vllm: SimpleNamespace) -> None:
    vllm.rank = 1
    proposer, rows = SpeculantProposer(_config(graph_path=str(graph_path))), _Rows(1)
    assert proposer.propose([rows.add(0, *range(10, 20))], rows.lengths, rows.tokens) == [[]]
    proposer.close()
    vllm.is_parallel = False  # a single rank without groups
    proposer = SpeculantProposer(_config(graph_path=str(graph_path)))
    assert proposer.sessions is not None
    proposer.close()


def test_what_is_accepted_is_learned_and_kept_over_restarts(tmp_path: Path) -> None:
    """Text written by one proposer is drafted by the next one."""
    text = [*range(100, 130)]
    for is_known in (False, True):
        proposer, rows = SpeculantProposer(_config(learned=str(tmp_path / "learned"))), _Rows(1)
        proposer.sessions._budget = None
        drafts = proposer.propose([rows.add(0, *text[:8])], rows.lengths, rows.tokens)
        assert (drafts == [text[8 : 8 + _MOST]]) is is_known
        for token in text[8:]:
            proposer.propose([rows.add(0, token)], rows.lengths, rows.tokens)
        proposer.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grpah_path": "x"}, "no setting grpah_path; is it graph_path"),
        ({"draft": {"strategy": "best"}}, "strategy"),
        ({"graph_path": "x.pkl", "client": {"address": "unix:///y"}}, "leave out graph_path or client.address"),
        ({"learned": "folder", "client": {"address": "unix:///y"}}, "leave out learned"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    # Promised behaviour: the message says which settings to remove.
    with pytest.raises(ConfigError, match=message):
        SpeculantProposer(_config(**settings))


def test_drafts_that_vllm_does_not_verify_are_refused() -> None:
    config = _config()
    config.speculative_config.num_speculative_tokens = 129
    with pytest.raises(ConfigError) as caught:
        SpeculantProposer(config)
    assert caught.value.field == "--speculative-config num_speculative_tokens"
    assert caught.value.fix


def test_a_graph_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    build_from_token_ids(_TEXT, Fingerprint("other", "11" * 32, 4_096)).save(tmp_path / "other.pkl")
    with pytest.raises(TokenizerMismatchError):
        SpeculantProposer(_config(graph_path=str(tmp_path / "other.pkl")))
