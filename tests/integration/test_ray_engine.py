"""Tasks of a Ray cluster make the same graph, byte for byte."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOKENIZER = Path(__file__).parents[2] / "verifier_client" / "speculant_verifier" / "demo" / "model"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra 'cluster' is not installed"),
]


def test_local_threads_and_ray_tasks_write_the_same_bytes(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(500)]
    chosen = np.random.default_rng(0).zipf(1.3, 60_000).clip(max=499)
    (tmp_path / "text.txt").write_text(" ".join(words[number] for number in chosen), encoding="utf-8")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    for engine in ("local", "ray"):
        subprocess.run(
            [
                sys.executable, "-m", "speculant_graph.cli.main", "build", "text.txt", "-o", f"{engine}.pkl",
                "--tokenizer", TOKENIZER, "--engine", engine, "--jobs", "2",
            ],
            cwd=tmp_path, env=environment, check=True,
        )  # fmt: skip
    local, ray = ((tmp_path / f"{engine}.pkl").read_bytes() for engine in ("local", "ray"))
    assert len(local) > 1_000_000
    assert local == ray
    assert sorted(file.name for file in tmp_path.iterdir()) == ["local.pkl", "ray.pkl", "text.txt"]
