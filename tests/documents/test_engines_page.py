"""The page about engines: its settings are accepted, and its drafter for TensorRT-LLM drafts.

``tests/engines`` runs the engines themselves.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from speculant_graph.engines.factory import load_engine_settings
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_verifier.demo.run import MODEL_FOLDER
from support.pages import Block, all_blocks, read_page

_PAGE = read_page("docs/engines.md")


def _block(beginning: str) -> Block:
    [found] = [block for block in all_blocks(_PAGE) if block.first_line.startswith(beginning)]
    return found


def test_the_command_for_vllm_names_what_is_there() -> None:
    words = re.findall(r"'(\{.*?\})'", _block("vllm serve").body, re.DOTALL)
    speculative, additional = map(json.loads, words)
    module, _, name = speculative["model"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name).propose)
    assert speculative["method"] == "custom_class"
    assert load_engine_settings(additional["speculant"], "the page").graph_path == [Path("graph.pkl")]
    for given in re.findall(r"`(\{\"speculant\".*?\}\})`", _PAGE):
        load_engine_settings(json.loads(given)["speculant"], "the page")


@pytest.fixture
def tensorrt_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the modules that the program imports."""

    class Drafter:
        pass

    names = {
        "tensorrt_llm": {"LLM": None},
        "tensorrt_llm.llmapi": {"UserProvidedDecodingConfig": None},
        "tensorrt_llm._torch": {},
        "tensorrt_llm._torch.speculative": {},
        "tensorrt_llm._torch.speculative.drafter": {"Drafter": Drafter},
    }
    for name, content in names.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


class _Request:
    py_orig_prompt_len, py_max_new_tokens, request_id = 4, 20, 7
    py_draft_tokens: Any = None

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return self.token_ids

    def get_num_tokens(self, beam: int) -> int:
        return len(self.get_tokens(beam))


def test_the_drafter_for_tensorrt_llm_drafts(
    tensorrt_llm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from speculant_graph.corpus.tokenize import CorpusTokenizer

    graph: NgramGraph = build_from_token_ids([*range(10, 40)] * 20, CorpusTokenizer.load(MODEL_FOLDER).fingerprint)
    graph.save(tmp_path / "graph.pkl")
    program: dict[str, Any] = {"__name__": "page"}
    body = _block("from tensorrt_llm").body.replace("openai/gpt-oss-20b", str(MODEL_FOLDER))
    exec(compile(body, "docs/engines.md", "exec"), program)
    drafter, request = program["SpeculantDrafter"](), _Request([10, 11, 12, 13, 14])
    drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=[request]))
    assert request.py_draft_tokens == [15, 16, 17, 18, 19, 20, 21, 22]
    request.token_ids = [*range(10, 33)]
    drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=[request]))
    assert request.py_draft_tokens == []
    drafter.sessions.close()
