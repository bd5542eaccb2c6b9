"""The page's program for llama-cpp-python and llama-server's table, with the real programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from speculant_verifier.demo.run import MODEL_FOLDER
from support.gguf_file import write_gguf
from support.pages import all_blocks, read_page
from support.real_engines import installed

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


def test_the_program_of_the_page(graph: Path, tmp_path: Path) -> None:
    python = installed("llama-cpp/bin/python")
    shutil.copy(graph, tmp_path / "graph.pkl")
    write_gguf(MODEL_FOLDER, tmp_path / "model.gguf")
    [program] = [
        block for block in all_blocks(read_page("docs/engines.md")) if block.first_line == "from llama_cpp import Llama"
    ]
    outcome = subprocess.run(
        [str(python), "-c", program.body], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert outcome.returncode == 0, outcome.stderr[-3_000:]
    assert len(outcome.stdout.strip()) > 20
