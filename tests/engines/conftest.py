"""Fixtures of the engine tests: the demo's model and graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.corpus import standard_library_files
from speculant_verifier.demo.run import MODEL_FOLDER
from support.engine_checkpoint import pad_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo's model in the smallest shape that vLLM's CPU kernels accept."""
    folder = tmp_path_factory.mktemp("model")
    pad_checkpoint(MODEL_FOLDER, folder, 160, 192)
    return folder


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.pkl"
    GraphBuilder(tokenizer_name=str(MODEL_FOLDER)).build(standard_library_files(), path)
    return path
