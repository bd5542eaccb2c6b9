"""Every example runs with its documented command and prints the promised output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import ROOT

PRINTED = {
    "engine_adapter.py": r"the same 40 tokens of 2 sequences: 40 passes plainly, [123]?\d with drafts",
    "in_process.py": r"the same 60 tokens: 60 passes plainly, [1-5]?\d with drafts",
    "learn_from_logs.py": r"takes [2-9]\d passes without the graph, 1?\d with it",
    "service.py": r"[2-9]\.\d tokens per pass",
}
"""Example -> a pattern of its output."""
SLOW = {"engine_adapter.py", "in_process.py", "service.py"}
"""Examples that import torch in a new process."""


def test_every_example_is_known() -> None:
    there = {path.name for path in ROOT.glob("examples/*.py")}
    assert there == set(PRINTED)
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in page for name in there)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PRINTED])
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / name], cwd=tmp_path,
        env=os.environ | {"SPECULANT_VERIFIER__NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert re.search(PRINTED[name], run.stdout), run.stdout
