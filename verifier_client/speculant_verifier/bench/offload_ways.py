"""What the processes of ``speculant bench offload`` do; each writes one JSON object as its last line."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from accelerate import infer_auto_device_map, init_empty_weights
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GptOssConfig, LlamaConfig

from speculant_graph.bench.replay_traces import read_workloads
from speculant_graph.client import LocalDrafter, NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError
from speculant_graph.machine import anonymous_bytes
from speculant_graph.types import Draft
from speculant_verifier.bench.cases import Case
from speculant_verifier.bench.own_decoding import OwnDecoding
from speculant_verifier.bench.tally import Decoded
from speculant_verifier.console import quiet_transformers
from speculant_verifier.model import TargetModel
from speculant_verifier.offload.files import bytes_per_second
from speculant_verifier.speculation import load_or_measure

_VOCABULARY = 16_384
_PLAIN_TOKENS = 16
"""Decoded without drafts: every one takes as long as the others."""
_SAMPLE_S = 0.05
_NUM_PASSES = 5


def weights(wanted: dict[str, Any]) -> dict[str, Any]:
    """Write a checkpoint of random weights, unless there is one, and the outputs with their tokens numbered anew."""
    tokenizer = CorpusTokenizer.load(wanted["tokenizer"], special_tokens="parse")
    numbers: dict[int, int] = {}
    workloads: dict[str, list[list[list[int]]]] = {}
    for workload in read_workloads([Path(path) for path in wanted["replay"]], tokenizer, wanted["limit"]):
        cases = workloads[workload.name] = []
        for trace in workload.traces:
            texts = [list(trace.prompt), list(trace.output[: wanted["max_tokens"]])]
            if not wanted["model"]:
                texts = [[numbers.setdefault(token, len(numbers)) for token in text] for text in texts]
            cases.append(texts)
    Path(wanted["folder"], "cases.json").write_text(json.dumps(workloads), "utf-8")
    if len(numbers) > _VOCABULARY:
        raise ConfigError(f"the outputs have {len(numbers)} different tokens, more than {_VOCABULARY}; lower --limit")
    if not wanted["model"]:
        config = _architecture(wanted["family"], wanted["size"])
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(_checkpoint(wanted))
    return {}


def streamed(wanted: dict[str, Any]) -> dict[str, Any]:
    """Decode with a part of the weights in memory."""
    _join(wanted)
    with _peak() as peak:
        target = _loaded(wanted, ram_budget=wanted["ram_budget"])
        offload = target.offload
        if offload is None:
            raise ConfigError(f"the model fits into {wanted['ram_budget']} bytes; lower --ram-budget")
        costs = load_or_measure(target, [1], folder=Path(wanted["folder"], "costs"))
        results: list[dict[str, Any]] = []
        seconds, before_all = 0.0, offload.statistics
        for name, cases in _workloads(wanted).items():
            for nodes in (0, *wanted["nodes"]):
                draft = DraftConfig(k=nodes, max_depth=min(255, max(24, nodes)))
                curve = costs.curve(1)
                drafter = LocalDrafter(None, draft, cost=curve, vocabulary_size=_VOCABULARY) if nodes else NullDrafter()
                decoding = OwnDecoding(target, drafter, draft, 1, costs.relative_of_widths)
                before = offload.statistics
                done = [decoding.decode([case if nodes else _short(case)], GenerationConfig()) for case in cases]
                drafter.close()
                del decoding
                gc.collect()  # one engine at a time has keys and values
                after, elapsed_s = offload.statistics, sum(each.total_s for each in done)
                seconds += elapsed_s
                results.append({"workload": name, "nodes": nodes, **_rates(done)})
                results[-1] |= {
                    "speedup": results[-1]["tokens_per_s"] / results[-1 - _index_of(nodes, wanted)]["tokens_per_s"],
                    "stall_share": (after.stall_s - before.stall_s) / elapsed_s,
                    "bytes_per_token": (after.num_bytes - before.num_bytes) / sum(map(_num_tokens, done)),
                    "hit_rate": (after.num_found - before.num_found) / max(1, after.num_wanted - before.num_wanted),
                }
        num_bytes = offload.statistics.num_bytes - before_all.num_bytes
        _save_logits(target, wanted, "streamed")
        passes = {}
        for name, width in (("", 1), ("wide_", max(wanted["nodes"]))):
            # In turns with plain reading: a disk is fast after a rest, and slower when it has been read for long.
            times = [
                (*_pass_of(target, width), bytes_per_second(_checkpoint(wanted), 1 << 40)) for _ in range(_NUM_PASSES)
            ]
            passes[f"stream_{name}pass_ms"] = 1e3 * float(np.median([seconds for seconds, _, _ in times]))
            passes[f"read_{name}pass_ms"] = 1e3 * float(np.median([count / rate for _, count, rate in times]))
            passes[f"{name}pass_bytes"] = float(np.median([count for _, count, _ in times]))
            bytes_per_s = float(np.median([rate for _, _, rate in times]))
    offload.close()
    config = target.model.config.get_text_config()
    num_experts = getattr(config, "num_local_experts", None)
    return passes | {
        "plan": dict(offload.plan.rows()),
        "chosen_bytes": offload.plan.num_units * offload.plan.file_bytes * config.num_experts_per_tok / num_experts
        if num_experts
        else None,
        "peak_bytes": peak[0],
        "results": results,
        "plain_tokens_per_s": min(each["tokens_per_s"] for each in results if each["nodes"] == 0),
        "bytes_per_s": bytes_per_s,
        "bandwidth_share": num_bytes / seconds / bytes_per_s,
    }


def accelerate(wanted: dict[str, Any]) -> dict[str, Any]:
    """Decode by accelerate's disk offloading.

    The page cache is emptied before each pass, as a machine of the budget's memory has no room for it.
    """
    _join(wanted)
    checkpoint = _checkpoint(wanted)
    config = AutoConfig.from_pretrained(checkpoint)
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    empty.tie_weights()
    room = max(1, int(0.8 * wanted["ram_budget"]) - anonymous_bytes())
    places = infer_auto_device_map(empty, {"cpu": room, "disk": 10**15}, empty._no_split_modules, torch.bfloat16)
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.bfloat16, device_map=places, offload_folder=folder
        )
        times = []
        with torch.inference_mode():
            for _ in range(_NUM_PASSES):
                _forget(checkpoint)
                started_s = time.perf_counter()
                model(torch.randint(_VOCABULARY, (1, 1)))
                times.append(time.perf_counter() - started_s)
    median_s = float(np.median(times))
    return {"accelerate_pass_ms": 1e3 * median_s, "accelerate_tokens_per_s": 1.0 / median_s}


def resident(wanted: dict[str, Any]) -> dict[str, Any]:
    """Compute the same with all weights in memory."""
    target = _loaded(wanted, offload=False)
    _save_logits(target, wanted, "resident")
    first, second = (torch.load(Path(wanted["folder"], f"{way}.pt")) for way in ("streamed", "resident"))
    return {
        "identical": torch.equal(first, second),
        **{
            f"resident_{name}pass_ms": 1e3 * float(np.median([_pass_of(target, width)[0] for _ in range(_NUM_PASSES)]))
            for name, width in (("", 1), ("wide_", max(wanted["nodes"])))
        },
    }


def _architecture(family: str, size: int) -> LlamaConfig | GptOssConfig:
    ends: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    ends |= {"vocab_size": _VOCABULARY, "tie_word_embeddings": True, "max_position_embeddings": 32_768}
    if family == "llama":
        width = 2048
        per_layer = 2 * (width * width * 5 // 2 + 3 * width * 5632)
        return LlamaConfig(
            hidden_size=width, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=4,
            num_hidden_layers=max(1, (size - 2 * width * _VOCABULARY) // per_layer), **ends,
        )  # fmt: skip
    width = 1024
    per_layer = 2 * (32 * 3 * width * width + 3 * width * width)
    return GptOssConfig(
        hidden_size=width, intermediate_size=width, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
        num_local_experts=32, num_experts_per_tok=4,
        num_hidden_layers=2 * max(1, (size - 2 * width * _VOCABULARY) // per_layer // 2), **ends,
    )  # fmt: skip


def _checkpoint(wanted: dict[str, Any]) -> Path:
    return Path(wanted["model"] or Path(wanted["folder"], "model"))


def _loaded(wanted: dict[str, Any], **options: Any) -> TargetModel:
    config = VerifierConfig(
        model_name=str(_checkpoint(wanted)),
        tokenizer_name=wanted["tokenizer"],
        dtype="bfloat16",
        max_batch_size=1,
        **options,
    )
    return TargetModel.load(config)


def _workloads(wanted: dict[str, Any]) -> dict[str, list[Case]]:
    content = json.loads(Path(wanted["folder"], "cases.json").read_text("utf-8"))
    return {
        name: [Case(tuple(prompt), len(output), tuple(output)) for prompt, output in cases]
        for name, cases in content.items()
    }


def _short(case: Case) -> Case:
    output = (case.forced or ())[:_PLAIN_TOKENS]
    return replace(case, max_tokens=len(output), forced=output)


def _index_of(nodes: int, wanted: dict[str, Any]) -> int:
    return [0, *wanted["nodes"]].index(nodes)


def _num_tokens(done: Decoded) -> int:
    return sum(len(row.token_ids) for row in done.rows)


def _rates(done: Sequence[Decoded]) -> dict[str, float]:
    """Return rates without the reading of prompts, which is the same everywhere."""
    num_tokens = sum(map(_num_tokens, done))
    num_steps = sum(row.num_steps for each in done for row in each.rows)
    seconds = sum(each.total_s - each.phase_s["prefill"] for each in done)
    return {"tokens_per_s": num_tokens / seconds, "tokens_per_pass": num_tokens / num_steps}


def _save_logits(target: TargetModel, wanted: dict[str, Any], name: str) -> None:
    """Keep what the model says after a prompt and a tree of the output and of a copy of its beginning."""
    case = next(iter(_workloads(wanted).values()))[0]
    output = case.forced or ()
    again = output[:8]
    draft = Draft(output + again, (*range(len(output)), 0, *range(len(output) + 1, len(output) + len(again))))
    cache = target.new_cache(1)
    target.prefill([case.prompt[:-1]], cache, [0])
    logits: Tensor = target.forward([case.prompt[-1:]], cache, [0], [draft])
    torch.save(logits, Path(wanted["folder"], f"{name}.pt"))


def _pass_of(target: TargetModel, width: int) -> tuple[float, int]:
    """Return the seconds of a pass over random tokens, and the bytes that it reads."""
    tokens = torch.randint(_VOCABULARY, (width,)).tolist()
    draft = Draft(tuple(tokens[1:]), (0,) * (width - 1))
    before = target.offload.statistics.num_bytes if target.offload else 0
    started_s = time.perf_counter()
    target.forward([tokens[:1]], target.new_cache(1), [0], [draft])
    elapsed_s = time.perf_counter() - started_s
    return elapsed_s, (target.offload.statistics.num_bytes if target.offload else 0) - before


def _forget(checkpoint: Path) -> None:
    """Take files out of the page cache."""
    for path in checkpoint.glob("*.safetensors"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _join(wanted: dict[str, Any]) -> None:
    if wanted["cgroup"]:
        Path(wanted["cgroup"], "cgroup.procs").write_text(str(os.getpid()), "ascii")


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Watch the memory of this process; the most of it is in the list at the end."""
    most, is_over = [anonymous_bytes()], Event()

    def watch() -> None:
        while not is_over.wait(_SAMPLE_S):
            most[0] = max(most[0], anonymous_bytes())

    watching = Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield most
    finally:
        is_over.set()
        watching.join()


if __name__ == "__main__":
    quiet_transformers()
    way = {each.__name__: each for each in (weights, streamed, accelerate, resident)}[sys.argv[1]]
    sys.stdout.write(json.dumps(way(json.loads(sys.argv[2]))) + "\n")
