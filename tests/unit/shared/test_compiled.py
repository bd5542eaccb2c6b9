"""Machine code that is kept on disk is made again when any of its sources changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import speculant_graph

CALLEE = """
from speculant_graph.graph.compiled import embedded

@embedded
def answer():
    return {}
"""
CALLER = """
from speculant_graph.draft.callee import answer
from speculant_graph.graph.compiled import compiled

@compiled
def ask():
    return answer()
"""
ASK = """
from speculant_graph.draft.caller import ask
print(ask(), sum(ask.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_a_kernel_is_compiled_again_when_what_it_calls_has_changed(tmp_path: Path) -> None:
    [folder] = speculant_graph.__path__
    package = shutil.copytree(folder, tmp_path / "speculant_graph", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "draft" / "caller.py").write_text(CALLER)

    def answer_and_cache_hits(answer: int) -> str:
        (package / "draft" / "callee.py").write_text(CALLEE.format(answer))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        environment.pop("NUMBA_CACHE_DIR", None)
        command = [sys.executable, "-c", ASK]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert [answer_and_cache_hits(answer) for answer in (1, 1, 2, 2)] == ["1 0", "1 1", "2 0", "2 1"]
