"""Measures the released gpt-oss in less memory than it needs: random weights in MXFP4, in the released shapes.

    python tests/perf/packed.py FOLDER [--layers 24] [--vocabulary 201088] [--budget 6GB] [--nodes 16] [--device cuda]

A checkpoint of 13.8 GB is written to FOLDER unless it holds one. Passes run on random tokens: over one token, over
trees, and over so many tokens that every expert is needed. Random routers choose experts evenly, so memory holds few of
the chosen experts. On a GPU the budget is the GPU's, and weights that exceed it are copied from host memory. The last
line is JSON: peaks of memory and, per kind of pass, its seconds, its bytes and a ratio. The ratio compares these bytes
with the bytes of all chosen experts, in memory or not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
from pydantic import ByteSize, TypeAdapter

sys.path.insert(0, str(Path(__file__).parents[1]))

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.graph.build.build_report import BuildReport
from speculant_graph.machine import describe_machine
from speculant_graph.types import Draft
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.model import TargetModel
from support.packed_checkpoint import full_config, write_packed
from support.tiny_models import byte_tokenizer


def _passes(target: TargetModel, width: int, count: int) -> dict[str, float]:
    """Run passes over one token followed by a tree, ``width`` tokens together; the first pass is not counted."""
    offload = target.offload
    assert offload is not None
    cache, rows = target.new_cache(1, widest_pass=max(2, width)), []
    for _ in range(count + 1):
        tokens = torch.randint(target.vocabulary_size, (width,)).tolist()
        draft = Draft(tuple(tokens[1:]), tuple(max(0, node // 2) for node in range(width - 1)))
        before = offload.num_bytes, offload.num_wanted
        started_s = time.perf_counter()
        target.forward([tokens[:1]], cache, [0], [draft])
        if target.device.type == "cuda":
            torch.cuda.synchronize()
        took_s = time.perf_counter() - started_s
        num_bytes, wanted = offload.num_bytes - before[0], offload.num_wanted - before[1]
        rows.append((took_s, num_bytes, wanted * offload.plan.file_bytes))
    seconds, num_bytes, chosen = zip(*rows[1:], strict=True)
    return {
        "nodes": width - 1, "median_s": median(seconds), "least_s": min(seconds), "bytes": sum(num_bytes) / count,
        "bytes_over_chosen": sum(num_bytes) / max(1, sum(chosen)),
    }  # fmt: skip


def main() -> None:
    """Measure all passes and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=201_088)
    parser.add_argument("--budget", type=TypeAdapter(ByteSize).validate_python, default=ByteSize(6_000_000_000))
    parser.add_argument("--nodes", type=int, nargs="*", default=[0, 16, 64])
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if not (folder / "config.json").is_file():
        byte_tokenizer().save_pretrained(folder)
        write_packed(folder, full_config(arguments.layers, arguments.vocabulary))
    config = VerifierConfig(
        model_name=str(folder),
        dtype="bfloat16",
        memory_budget=arguments.budget,
        max_batch_size=1,
        device=arguments.device,
    )
    report = BuildReport()  # it tracks memory
    with report.watching():
        started_s = time.perf_counter()
        target = TargetModel.load(config)
        loaded_s = time.perf_counter() - started_s
        assert target.offload is not None, "it fits into the budget"
        results = [_passes(target, 1 + nodes, arguments.passes) for nodes in arguments.nodes]
        decoder = SpeculativeDecoder(None, config, DraftConfig(k=max(arguments.nodes)), target=target)
        first_s = time.perf_counter()
        decoder.generate([[5, 6, 7, 8]], GenerationConfig(max_tokens=8))
        first_s = time.perf_counter() - first_s
        decoder.close()
    figures = {
        "plan": dict(target.offload.plan.rows()), "load_s": loaded_s, "eight_tokens_s": first_s,
        "budget_bytes": int(arguments.budget), "peak_anon_bytes": report.peak_anon_bytes, "passes": results,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if target.device.type == "cuda" else None,
        "machine": describe_machine(),
    }  # fmt: skip
    target.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
