"""A build keeps to its memory, however large the corpus is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.graph.build.keys import KeyLayout

TOKENIZER = Path(__file__).parents[2] / "verifier_client" / "speculant_verifier" / "demo" / "model"
MEMORY = 512_000_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_build_stays_within_its_memory(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = [f"{number:x}" for number in random.integers(0, 1 << 20, 5_000)]
    with (tmp_path / "text.txt").open("w", encoding="utf-8") as text:
        for _ in range(80):
            text.write(" ".join(words[number] for number in random.zipf(1.2, 100_000).clip(max=4_999)) + "\n")
    result = subprocess.run(
        [
            sys.executable, "-m", "speculant_graph.cli.main", "build", "text.txt", "-o", "graph.pkl",
            "--tokenizer", TOKENIZER, "--memory", str(MEMORY), "--jobs", "2", "--json",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    summary = json.loads(result.stdout.splitlines()[-1])
    layout = KeyLayout.of(4_096, 5)
    assert 2 * layout.bytes * summary["tokens"] > MEMORY, "all keys at once would not fit"
    assert summary["peak_anon_bytes"] <= MEMORY
