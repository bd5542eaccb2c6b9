"""Runs the benches that need a GPU one by one, on the released model's configuration with random weights.

Usage: ``make bench-gpu``. Nothing is downloaded: the tokenizer is the demo's, and the replayed text is the running
interpreter's standard library. The graph is built from other files of it.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from speculant_graph.cli import bench
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.corpus import training_files
from speculant_verifier.demo.run import MODEL_FOLDER

MODEL = "random:gpt-oss-20b"
"""The measured model, with 21 billion parameters in bfloat16, 42 GB."""
_PROMPT_CHARACTERS, _OUTPUT_CHARACTERS = 3_000, 1_000


def run_all(model: Sequence[str], batch: int, limit: int) -> int:
    """Run the benches on one model, each with its JSON object as the last line.

    Args:
        model: flags for the model and its device.
        batch: rows of the batched runs.
        limit: replayed traces of the batched runs; the other runs replay a sixteenth of them.
    """
    training, validation = training_files()
    with tempfile.TemporaryDirectory(prefix="speculant-") as name:
        traces, graph = Path(name, "standard_library.jsonl"), Path(name, "graph.pkl")
        _write_traces(validation, traces)
        GraphBuilder(tokenizer_name=str(MODEL_FOLDER)).build(training, graph)
        common = [*model, "--tokenizer", str(MODEL_FOLDER), "--json"]
        replay = ["generate", "--replay", str(traces), "--graph", str(graph), "-k", "15"]
        one, many = [*replay, "--limit", str(limit // 16)], [*replay, "--limit", str(limit), "--batch", str(batch)]
        cost = ["verify-cost", "--batch", f"1,{batch},{4 * batch}"]
        for command in (cost, [*cost, "--no-cuda-graphs"], one, many):
            status = bench.run([*command, *common])
            if status:
                return status
            gc.collect()  # free one bench's model before the next one loads
            torch.cuda.empty_cache()
    return 0


def _write_traces(files: Sequence[Path], path: Path) -> None:
    """Cut files into prompts and continuations, and write them as traces."""
    width = _PROMPT_CHARACTERS + _OUTPUT_CHARACTERS
    with path.open("w", encoding="utf-8") as traces:
        for file in files:
            text = file.read_text("utf-8")
            for start in range(0, max(1, len(text) - width), width):
                middle = start + _PROMPT_CHARACTERS
                record = {
                    "id": f"{file.name}:{start}",
                    "prompt": text[start:middle],
                    "output": text[middle:][:_OUTPUT_CHARACTERS],
                }
                traces.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(run_all(["--model", MODEL, "--device", "cuda"], batch=8, limit=64))
