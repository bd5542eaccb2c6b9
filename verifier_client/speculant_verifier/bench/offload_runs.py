"""Functions that the processes of ``speculant bench offload`` run."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import infer_auto_device_map, init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, GptOssConfig, LlamaConfig

from speculant_graph.bench.report import begin
from speculant_graph.bench.texts import read_workloads
from speculant_graph.budget import StepBudget
from speculant_graph.client import LocalDrafter, NullDrafter
from speculant_graph.config import DraftConfig, DraftModelConfig, VerifierConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.build_report import BuildReport
from speculant_graph.machine import anonymous_bytes
from speculant_graph.types import Draft, Drafter
from speculant_verifier.bench.decoding import DecodingStatistics, EngineDecoding
from speculant_verifier.bench.workload import BenchRequest
from speculant_verifier.draft_model.factory import load_draft_model, open_model_drafter
from speculant_verifier.model import TargetModel
from speculant_verifier.model.progress import quiet_transformers
from speculant_verifier.offload import plan_for
from speculant_verifier.offload.weight_files import bytes_per_second
from speculant_verifier.sources import is_model_local
from speculant_verifier.speculation import CostTable, ObservedCosts, load_or_measure

if TYPE_CHECKING:
    from speculant_verifier.bench.offload import BenchOffloadSettings

_VOCABULARY = 16_384
_PLAIN_TOKENS = 16
"""Number of tokens to decode per output without drafts; a few suffice, because every token takes the same time."""
_PROMPT_TOKENS = 20
"""Number of tokens of the prompts whose first token is timed after the start."""
_NUM_PASSES = 5
_BRANCHES = 64
"""Number of tree nodes that one pass of the draft model expands, as in SpecExec's paper."""


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """Plan of a measurement: folders, sizes and workloads that its processes share."""

    folder: Path
    """Folder for the checkpoint and for the files that the processes exchange."""
    tokenizer: str
    draft_model: str
    """Draft model for the strategy specexec. If no draft model is named, n-grams draft as many nodes as pay off."""
    family: str
    size: int
    """Size of the random weights, in bytes."""
    ram_budget: int
    """Memory limit of a process whose weights are offloaded, in bytes."""
    nodes: tuple[int, ...]
    """Node budgets of the draft trees to measure."""
    depth: int
    """Maximum depth of a draft model's trees."""
    workloads: Mapping[str, Sequence[BenchRequest]]
    """Recorded outputs."""
    vocabulary_size: int
    """Vocabulary size of the random model."""

    @property
    def checkpoint(self) -> Path:
        """Folder of the checkpoint with the random weights."""
        return self.folder / "model"


def workloads_of(settings: BenchOffloadSettings) -> tuple[dict[str, list[BenchRequest]], int]:
    """Read recorded outputs; return them and the size of their vocabulary.

    If there is no draft model, tokens are renumbered in the order in which they first occur.

    Raises:
        ConfigError: the outputs have more distinct tokens than the vocabulary.
    """
    tokenizer = CorpusTokenizer.load(settings.tokenizer, special_tokens="parse")
    ids: dict[int, int] = {}
    workloads: dict[str, list[BenchRequest]] = {}
    for workload in read_workloads(settings.replay, tokenizer, settings.limit):
        requests = workloads[workload.name] = []
        for trace in workload.traces:
            prompt, output = (
                tuple(ids.setdefault(token, token if settings.draft_model.name else len(ids)) for token in text)
                for text in (trace.prompt, trace.output[: settings.max_tokens])
            )
            requests.append(BenchRequest(prompt, len(output), output))
    if settings.draft_model.name:
        return workloads, tokenizer.fingerprint.vocabulary_size
    if len(ids) > _VOCABULARY:
        raise ConfigError(f"the outputs have {len(ids)} different tokens, more than {_VOCABULARY}; lower --limit")
    return workloads, _VOCABULARY


def write_weights(plan: OffloadPlan) -> dict[str, Any]:
    """Write a checkpoint of random weights.

    Raises:
        ConfigError: there is no such draft model, or the model fits into the budget or can't be streamed within it.
    """
    quiet_transformers()
    if plan.draft_model:
        try:
            is_model_local(VerifierConfig(model_name=plan.draft_model))
        except ConfigError as error:
            raise error.renamed("draft_model.name") from None
    config = _architecture(plan.family, plan.size, plan.vocabulary_size)
    try:
        if plan_for(config, torch.bfloat16, _settings(plan, memory_budget=plan.ram_budget)) is None:
            raise _fitting(plan)
    except ConfigError as error:
        raise error.renamed("--ram-budget") if error.field else error from None
    begin("writing random weights")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(plan.checkpoint)
    return {}


def streamed(plan: OffloadPlan) -> dict[str, Any]:
    """Decode while only a part of the weights is in memory."""
    report = BuildReport()  # records peak memory
    with report.watching():
        _empty_page_cache(plan)
        started_s = time.perf_counter()
        target = _loaded(plan, memory_budget=plan.ram_budget)
        offload = target.offload
        if offload is None:
            raise _fitting(plan)
        costs = load_or_measure(target, [1], plan.folder / "costs", most_nodes=max(plan.nodes))
        start_s = time.perf_counter() - started_s
        first_s, later_s = (_decode(target, plan, costs, [_random_prompt(target)], 0).total_s for _ in range(2))
        sys.stderr.write(f"{start_s:.1f} s to load and to time passes, {first_s:.1f} s to the first token\n")
        results: list[dict[str, Any]] = []
        seconds, num_bytes = 0.0, -offload.num_bytes
        for name, requests in plan.workloads.items():
            plain = 0.0
            for nodes in (0, *plan.nodes):
                statistics = _decode(target, plan, costs, requests, nodes)
                seconds += statistics.total_s
                rate = statistics.tokens_per_s_without_prompts  # the same for all variants
                plain = plain or rate
                results.append({
                    "workload": name, "nodes": nodes, "tokens_per_s": rate, "speedup": rate / plain,
                    "tokens_per_pass": statistics.mean_accepted_tokens,
                    "drafted_per_pass": statistics.num_drafted / statistics.num_steps,
                    "phase_ms": statistics.phase_ms(),
                })  # fmt: skip
                per_pass = statistics.mean_accepted_tokens
                sys.stderr.write(f"{name}, {nodes} nodes: {rate:.3g} tokens/s, {per_pass:.3g} tokens per pass\n")
        num_bytes += offload.num_bytes
        torch.save(_logits(target, plan), plan.folder / "streamed.pt")
        passes = {}
        for name, width in (("", 1), ("wide_", max(plan.nodes))):
            # Interleave with plain decoding, because a disk is faster after a pause than under sustained reads.
            times = [(*_pass_of(target, width), bytes_per_second(plan.checkpoint, 1 << 40)) for _ in range(_NUM_PASSES)]
            passes[f"stream_{name}pass_ms"] = 1e3 * float(np.median([took_s for took_s, _, _ in times]))
            passes[f"read_{name}pass_ms"] = 1e3 * float(np.median([count / rate for _, count, rate in times]))
            bytes_per_s = float(np.median([rate for _, _, rate in times]))
    offload.close()
    return passes | {
        "plan": dict(offload.plan.rows()),
        "start_s": start_s,
        "first_token_s": first_s,
        "later_first_token_s": later_s,
        "peak_bytes": report.peak_anon_bytes,
        "results": results,
        "plain_tokens_per_s": min(each["tokens_per_s"] for each in results if each["nodes"] == 0),
        "bytes_per_s": bytes_per_s,
        "bandwidth_share": num_bytes / seconds / bytes_per_s,
    }


def accelerate(plan: OffloadPlan) -> dict[str, Any]:
    """Measure forward passes with accelerate's disk offloading.

    The page cache is emptied before each pass, because a machine with only the budgeted memory would have no page
    cache.
    """
    quiet_transformers()
    config = AutoConfig.from_pretrained(plan.checkpoint)
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    empty.tie_weights()
    space = max(1, int(0.8 * plan.ram_budget) - anonymous_bytes())
    device_map = infer_auto_device_map(empty, {"cpu": space, "disk": 10**15}, empty._no_split_modules, torch.bfloat16)
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        model = AutoModelForCausalLM.from_pretrained(
            plan.checkpoint, dtype=torch.bfloat16, device_map=device_map, offload_folder=folder
        )
        times = []
        with torch.inference_mode():
            for _ in range(_NUM_PASSES):
                _empty_page_cache(plan)
                started_s = time.perf_counter()
                model(torch.randint(plan.vocabulary_size, (1, 1)))
                times.append(time.perf_counter() - started_s)
    median_s = float(np.median(times))
    return {"accelerate_pass_ms": 1e3 * median_s, "accelerate_tokens_per_s": 1.0 / median_s}


def resident(plan: OffloadPlan) -> dict[str, Any]:
    """Compute logits with all weights in memory, and compare them with the logits from offloaded weights."""
    target = _loaded(plan)
    figures: dict[str, Any] = {"identical": torch.equal(torch.load(plan.folder / "streamed.pt"), _logits(target, plan))}
    for name, width in (("", 1), ("wide_", max(plan.nodes))):
        times = [_pass_of(target, width)[0] for _ in range(_NUM_PASSES)]
        figures[f"resident_{name}pass_ms"] = 1e3 * float(np.median(times))
    return figures


def _empty_page_cache(plan: OffloadPlan) -> None:
    for path in plan.checkpoint.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _random_prompt(target: TargetModel) -> BenchRequest:
    """Return a request for one token after a random prompt."""
    prompt = torch.randint(target.vocabulary_size, (_PROMPT_TOKENS,)).tolist()
    return BenchRequest(tuple(prompt), 1, (0,))


def _architecture(family: str, size: int, vocabulary_size: int) -> LlamaConfig | GptOssConfig:
    common: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    common |= {"vocab_size": vocabulary_size, "tie_word_embeddings": True, "max_position_embeddings": 32_768}
    common |= {"num_attention_heads": 16, "num_key_value_heads": 4}
    if family == "llama":
        width = 2048
        per_layer = 2 * (width * width * 5 // 2 + 3 * width * 5632)
        num_layers = max(1, (size - 2 * width * vocabulary_size) // per_layer)
        return LlamaConfig(hidden_size=width, intermediate_size=5632, num_hidden_layers=num_layers, **common)
    width = 1024
    per_layer = 2 * (32 * 3 * width * width + 3 * width * width)
    return GptOssConfig(
        hidden_size=width, intermediate_size=width, head_dim=64, num_local_experts=32, num_experts_per_tok=4,
        num_hidden_layers=2 * max(1, (size - 2 * width * vocabulary_size) // per_layer // 2), **common,
    )  # fmt: skip


def _fitting(plan: OffloadPlan) -> ConfigError:
    return ConfigError(
        f"a model of {plan.size} bytes fits into {plan.ram_budget} bytes, so there is nothing to stream",
        fix="lower --ram-budget, or raise --size",
    )


def _loaded(plan: OffloadPlan, **options: Any) -> TargetModel:
    quiet_transformers()
    return TargetModel.load(_settings(plan, **options))


def _settings(plan: OffloadPlan, **options: Any) -> VerifierConfig:
    return VerifierConfig(
        model_name=str(plan.checkpoint),
        tokenizer_name=plan.tokenizer,
        device="cpu",  # as for accelerate; the disk's speed bounds the passes
        dtype="bfloat16",
        max_batch_size=1,
        **options,
    )


def _decode(
    target: TargetModel, plan: OffloadPlan, costs: CostTable, requests: Sequence[BenchRequest], nodes: int
) -> DecodingStatistics:
    """Decode with trees of at most ``nodes`` nodes; if ``nodes`` is 0, decode only the first tokens, without drafts."""
    if not nodes:
        beginnings = [(request.teacher_forced or ())[:_PLAIN_TOKENS] for request in requests]
        requests = [
            replace(request, max_tokens=len(forced), teacher_forced=forced)
            for request, forced in zip(requests, beginnings, strict=True)
        ]
    draft = DraftConfig(k=nodes, max_depth=min(255, max(24, nodes)))
    drafter: Drafter = LocalDrafter(None, draft, vocabulary_size=plan.vocabulary_size) if nodes else NullDrafter()
    if nodes and plan.draft_model:
        draft = DraftConfig(k=nodes, strategy="specexec", max_depth=plan.depth, max_branches=_BRANCHES)
        verifier = VerifierConfig(device="cpu", dtype="bfloat16", max_batch_size=1)
        model = load_draft_model(DraftModelConfig(name=plan.draft_model), verifier, target)
        drafter = open_model_drafter(model, target, verifier, draft, None, None)
    decoding = EngineDecoding(target, drafter, draft, 1, budget=StepBudget(ObservedCosts(costs)))
    runs = [decoding.decode([request]) for request in requests]
    drafter.close()
    del decoding
    gc.collect()  # frees the KV cache of the previous engine
    return DecodingStatistics(runs)


def _logits(target: TargetModel, plan: OffloadPlan) -> torch.Tensor:
    """Return the logits for a prompt and a tree. One branch of the tree is the output, the other its first tokens."""
    request = next(iter(plan.workloads.values()))[0]
    output = request.teacher_forced or ()
    again = output[:8]
    draft = Draft(output + again, (*range(len(output)), 0, *range(len(output) + 1, len(output) + len(again))))
    cache = target.new_cache(1)
    target.prefill([request.prompt[:-1]], cache, [0])
    logits: torch.Tensor = target.forward([request.prompt[-1:]], cache, [0], [draft])
    return logits


def _pass_of(target: TargetModel, width: int) -> tuple[float, int]:
    """Return the duration in seconds of a pass over random tokens, and the number of bytes of weights that it reads."""
    tokens = torch.randint(target.vocabulary_size, (width,)).tolist()
    draft = Draft(tuple(tokens[1:]), (0,) * (width - 1))
    before = target.offload.num_bytes if target.offload else 0
    started_s = time.perf_counter()
    target.forward([tokens[:1]], target.new_cache(1), [0], [draft])
    elapsed_s = time.perf_counter() - started_s
    return elapsed_s, (target.offload.num_bytes if target.offload else 0) - before
