"""The plug-in's part of SGLang's worker. A stub replaces the base class, because its import needs a GPU."""

from __future__ import annotations

import array
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from speculant_sglang import lay_out

from speculant_graph import DraftConfig, LocalDrafter, NgramGraph, SequenceStep
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.rows import as_rows
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Draft
from speculant_verifier.demo.run import MODEL_FOLDER

_WIDTH = 6
_PATH = "sglang.srt.speculative.ngram_worker"


@pytest.fixture
def worker_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Base:
        def __init__(self, *_: Any) -> None:
            self.draft_token_num, self.topk, self.enable_overlap = _WIDTH, 8, True

        def clear_cache_pool(self) -> None:
            self.is_cleared = True

    module: Any = ModuleType(_PATH)
    module.NGRAMWorker = Base
    for name in ("sglang", "sglang.srt", "sglang.srt.speculative"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, _PATH, module)
    monkeypatch.delitem(sys.modules, "speculant_sglang.worker", raising=False)
    yield importlib.import_module("speculant_sglang.worker").SpeculantWorker
    sys.modules.pop("speculant_sglang.worker", None)


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NgramGraph:
    text = [*range(10, 40), *range(10, 20), *range(50, 60)] * 10
    graph = build_from_token_ids(text, CorpusTokenizer.load(MODEL_FOLDER).fingerprint)
    graph.save(tmp_path / "graph.pkl")
    monkeypatch.setenv("SPECULANT_GRAPH_PATH", str(tmp_path / "graph.pkl"))
    return graph


class _Group:
    """Ranks that share a model; stores the first rank's broadcast for the others."""

    told: Any = None

    def __init__(self, rank: int) -> None:
        self.rank_in_group, self.world_size = rank, 2

    def broadcast_object(self, value: Any, src: int) -> Any:
        assert src == 0
        if self.rank_in_group == 0:
            _Group.told = value
        return _Group.told


def _worker(worker_class: Any, rank: int) -> Any:
    target = SimpleNamespace(get_tp_group=lambda: _Group(rank), model_config=SimpleNamespace(vocab_size=4_096))
    arguments = SimpleNamespace(tokenizer_path=None, model_path=str(MODEL_FOLDER))
    return worker_class(arguments, 0, 0, target)


def _request(name: str, prompt: list[int], output: list[int], **custom: str) -> SimpleNamespace:
    return SimpleNamespace(
        rid=name,
        origin_input_ids_unpadded=array.array("q", prompt),
        output_ids=array.array("q", output),
        sampling_params=SimpleNamespace(custom_params=custom or None),
    )


class _Tensor(list):
    def cpu(self) -> _Tensor:
        return self

    def tolist(self) -> list[int]:
        return list(self)


def _batch(requests: list[Any], accepted: list[list[int]], *, is_synchronous: bool = False) -> SimpleNamespace:
    padded = [token for each in accepted for token in each + [0] * (_WIDTH - len(each))]
    info = SimpleNamespace(accept_tokens=_Tensor(padded), accept_lens=_Tensor(map(len, accepted)))
    return SimpleNamespace(reqs=requests, spec_info=info, grammar_needs_sync=lambda: is_synchronous)


def test_trees_are_those_of_the_whole_texts(worker_class: Any, graph: NgramGraph) -> None:
    worker, other = _worker(worker_class, 0), _worker(worker_class, 1)
    requests = [_request("a", [1, 10, 11], [12]), _request("b", [30, 31], [], speculant_tenant="red")]
    texts = [[1, 10, 11, 12, 17, 19], [30, 31, 32]]
    batch = _batch(requests, [[17, 19], [32]])
    tokens, ancestors = worker._prepare_draft_tokens(batch)
    alone = LocalDrafter(graph, DraftConfig())
    drafts = alone.draft([SequenceStep(number, text, _WIDTH - 1) for number, text in enumerate(texts, 1)])
    expected = lay_out([19, 32], as_rows(drafts), _WIDTH)
    assert tokens.tobytes() == expected[0].tobytes()
    assert ancestors.tobytes() == expected[1].tobytes()
    assert not drafts[0].is_chain
    for mine, theirs in zip(other._prepare_draft_tokens(batch), (tokens, ancestors), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert other.sessions is None
    again = _batch([_request("b", [30, 31], [32, 33], speculant_tenant="red")], [[7, 7]], is_synchronous=True)
    assert worker._prepare_draft_tokens(again)[0][0] == 33
    assert worker.sessions.counts.sequences == 2
    worker.clear_cache_pool()
    assert worker.is_cleared
    assert worker.sessions.counts.running == 0
    worker.sessions.close()


def test_what_a_draft_leaves_free_is_filled() -> None:
    tokens, ancestors = lay_out([9], as_rows([Draft((5, 6, 7), (0, 1, 0))]), _WIDTH)
    assert tokens.tolist() == [9, 5, 6, 7, 0, 0]
    assert np.array_equal(
        ancestors.reshape(_WIDTH, _WIDTH),
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 0, 0, 1, 0, 0],
            [1, 0, 0, 0, 1, 0],
            [1, 0, 0, 0, 0, 1],
        ],
    )
