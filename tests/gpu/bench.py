"""Runs the benches that need a GPU one by one, on the released model's configuration with random weights.

Usage: ``make bench-gpu``. Nothing is downloaded: the tokenizer is the demo's, the replayed text is the running
interpreter's standard library, and the graph is built from other files of it. If ``SPECULANT_DATA`` names a folder with
the released tokenizer and recorded outputs, these are replayed, too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from speculant_graph.cli import bench
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.corpus import training_files
from speculant_verifier.demo.run import MODEL_FOLDER

MODEL = "random:gpt-oss-20b"
"""The measured model, with 21 billion parameters in bfloat16, 42 GB."""
_PROMPT_CHARACTERS, _OUTPUT_CHARACTERS = 3_000, 1_500
_MAX_TOKENS = 384
"""Most decoded tokens of a text. Shorter runs mostly measure the recording of new shapes."""
_RECORDED = ("airline_agent", "airline_log"), ("chat", "llm_log")
"""Names of recorded outputs, and of the text that their graph is built from."""


def run_all(model: Sequence[str], batch: int, limit: int) -> int:
    """Run the benches on one model, each with its JSON object as the last line.

    Args:
        model: flags for the model and its device.
        batch: rows of the batched runs.
        limit: replayed traces of the batched runs; the other runs replay a sixteenth of them.
    """
    with tempfile.TemporaryDirectory(prefix="speculant-") as name:
        for command in _commands(Path(name), batch, limit):
            status = bench.run([*command, *model, "--json"])
            if status:
                return status
            gc.collect()  # free one bench's model before the next one loads
            torch.cuda.empty_cache()
    return 0


def _commands(folder: Path, batch: int, limit: int) -> Iterator[list[str]]:
    """Yield the benches; files that they read are written before each."""
    training, validation = training_files()
    traces = folder / "standard_library.jsonl"
    _write_traces(validation, traces)
    demo = ["--tokenizer", str(MODEL_FOLDER)]
    yield ["verify-cost", "--batch", f"1,{batch},{4 * batch}", "--time", "15", *demo]
    yield ["verify-cost", "--batch", f"1,{batch}", "--tokens", "1,8", "--time", "10", "--no-cuda-graphs", *demo]
    yield from _replays(traces, training, str(MODEL_FOLDER), folder, [(1, limit // 16), (batch, limit)])
    if "SPECULANT_DATA" in os.environ:
        data = Path(os.environ["SPECULANT_DATA"])
        for outputs, corpus in _RECORDED:
            yield from _replays(
                data / "traces" / f"{outputs}.jsonl", [data / "corpora" / f"{corpus}.txt"],
                str(data / "gpt-oss-tokenizer"), folder, [(1, limit // 16), (batch, limit), (4 * batch, 2 * limit)],
            )  # fmt: skip


def _replays(
    traces: Path, corpus: Sequence[Path], tokenizer: str, folder: Path, sizes: Sequence[tuple[int, int]]
) -> Iterator[list[str]]:
    graph = folder / f"{traces.stem}.pkl"
    GraphBuilder(tokenizer).build(corpus, graph)
    for rows, count in sizes:
        options = ["--batch", str(rows), "--max-batch-size", str(rows), "--max-tokens", str(_MAX_TOKENS)]
        yield [
            "generate", "--replay", str(traces), "--limit", str(count), "--graph", str(graph), *options,
            "--tokenizer", tokenizer,
        ]  # fmt: skip


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
    sys.exit(run_all(["--model", MODEL, "--device", "cuda"], batch=8, limit=32))
