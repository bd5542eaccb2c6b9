"""Every block of the README is run as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from speculant_verifier.demo.run import MODEL_FOLDER

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
TEXT = "The parties agree to the terms of this agreement. In case of doubt the parties agree to talk.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds what the README calls my-text, my-notes, my-traces.jsonl and my-model."""
    (tmp_path / "my-text").mkdir()
    for name in ("first.txt", "second.txt"):
        (tmp_path / "my-text" / name).write_text(TEXT * 20, encoding="utf-8")
    (tmp_path / "my-notes").mkdir()
    (tmp_path / "my-notes" / "notes.md").write_text("# Notes\n\n" + TEXT, encoding="utf-8")
    trace = {"prompt": TEXT, "output": TEXT}
    (tmp_path / "my-traces.jsonl").write_text(json.dumps(trace) + "\n", encoding="utf-8")
    shutil.copytree(MODEL_FOLDER, tmp_path / "my-model")
    return tmp_path


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert found
    return found


def test_bash_blocks(folder: Path) -> None:
    script = "\n".join(blocks("bash")).replace("/tmp/speculant-drafter", str(folder / "run"))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p) && wait' EXIT\n{script}"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "it drafts 8 tokens" in result.stdout
    assert result.stderr.count("40 tokens") == 3


def test_python_blocks(folder: Path) -> None:
    script = "\n".join(blocks("python"))
    result = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "drafted tokens accepted" in result.stdout


def test_extras_and_files_it_names_exist() -> None:
    root = Path(__file__).parents[2]
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "deploy/speculant.toml", "protos/speculant_graph/rpc/v1"):
        assert name in README
        assert (root / name).exists()
