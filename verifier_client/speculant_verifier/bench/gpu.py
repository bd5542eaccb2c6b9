"""The benches that need a GPU, one after another: the released model's configuration with random weights.

Usage: ``python -m speculant_verifier.bench.gpu``. Nothing is downloaded: the tokenizer is the demo's, and what is
replayed is the standard library of the interpreter that runs, of which the graph has seen other files. Where there is
no GPU it says so and ends.
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
from speculant_verifier.bench.models import RANDOM
from speculant_verifier.demo.corpus import training_files

MODEL = RANDOM + "gpt-oss-20b"
"""What is measured: 21 billion parameters in bfloat16, 42 GB."""

_TOKENIZER = Path(__file__).parents[1] / "demo" / "model"
_PROMPT_CHARACTERS, _OUTPUT_CHARACTERS = 3_000, 1_000


def main() -> int:
    """Run the benches, or say that there is no GPU."""
    if not torch.cuda.is_available():
        sys.stdout.write("torch sees no GPU here: nothing was measured\n")
        return 0
    return run_all(["--model", MODEL, "--device", "cuda"], batch=8, limit=16)


def run_all(model: Sequence[str], batch: int, limit: int) -> int:
    """Run every bench of the verifier on one model, each with its JSON object as the last line.

    Args:
        model: flags that name the model and where it runs.
        batch: rows of the batched runs.
        limit: traces that are replayed.
    """
    training, validation = training_files()
    with tempfile.TemporaryDirectory(prefix="speculant-") as name:
        folder = Path(name)
        traces, graph = folder / "standard_library.jsonl", folder / "graph.pkl"
        write_traces(validation, traces)
        GraphBuilder(tokenizer_name=str(_TOKENIZER)).build(training, graph)
        common = [*model, "--tokenizer", str(_TOKENIZER), "--json"]
        replay = ["generate", "--replay", str(traces), "--graph-path", str(graph), "--limit", str(limit)]
        for command in (
            ["verify-cost", "--batch", f"1,{batch},{4 * batch}"],
            [*replay, "-k", "15"],
            [*replay, "-k", "15", "--strategy", "tree", "--batch", str(batch)],
            ["generate", "--engine-overhead", "--batch", str(batch)],
        ):
            status = bench.run([*command, *common])
            if status:
                return status
            gc.collect()  # the model of one bench must go before the next one's comes
            torch.cuda.empty_cache()
    return 0


def write_traces(files: Sequence[Path], path: Path) -> None:
    """Cut files into prompts and the text that follows, as traces."""
    width = _PROMPT_CHARACTERS + _OUTPUT_CHARACTERS
    with path.open("w", encoding="utf-8") as traces:
        for file in files:
            text = file.read_text("utf-8")
            for start in range(0, max(1, len(text) - width), width):
                prompt = text[start : start + _PROMPT_CHARACTERS]
                output = text[start + _PROMPT_CHARACTERS : start + width]
                record = {"id": f"{file.name}:{start}", "prompt": prompt, "output": output}
                traces.write(json.dumps(record | {"workload": "standard_library"}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
