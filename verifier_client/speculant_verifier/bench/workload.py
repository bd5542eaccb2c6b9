"""Requests and models for benchmarks: prompts or recorded outputs, and checkpoints or random weights.

The duration of a forward pass hardly depends on the values of the weights, so random weights of the same shape suffice.
A model with random weights writes meaningless text, so it should replay recorded outputs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.bench.texts import read_workloads
from speculant_graph.config import VerifierConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from speculant_graph.types import TokenId
from speculant_verifier.cli.prompt_input import read_prompts as prompt_lines

if TYPE_CHECKING:
    from transformers import GptOssConfig

    from speculant_verifier.model import TargetModel
    from speculant_verifier.structured import Grammar

RANDOM = "random:"
"""Prefix that names a model with random weights, such as 'random:150M' or 'random:gpt-oss-20b'."""

_REAL = "gpt-oss-20b"
_SIZE = re.compile(r"\d+(?:\.\d+)?[MB]")
_UNITS = {"M": 1_000_000, "B": 1_000_000_000}
_HIDDEN, _NARROWEST = 512, 64
_HEAD, _EXPERTS, _ACTIVE = 64, 32, 4


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request."""

    prompt: tuple[TokenId, ...]
    """Tokens of the prompt, at least one."""
    max_tokens: int
    """Maximum number of tokens to decode."""
    teacher_forced: tuple[TokenId, ...] | None = None
    """The ``max_tokens`` tokens that the model is forced to output; None if the model chooses its tokens."""
    grammar: Grammar | None = None
    """Grammar that constrains the output; None for free output."""


def requests_of(texts: Sequence[str], target: TargetModel, max_tokens: int) -> list[BenchRequest]:
    """Create requests from prompts.

    Raises:
        ConfigError: a prompt and its continuation are too long for the model.
    """
    return _fitting([BenchRequest(tuple(target.encode(text)), max_tokens) for text in texts], target)


def replayed_requests(
    paths: Sequence[Path], target: TargetModel, limit: int | None, max_tokens: int
) -> dict[str, list[BenchRequest]]:
    """Create requests that replay the first ``max_tokens`` tokens of recorded outputs; return them by workload.

    Raises:
        CorpusError: a file can't be read, or has no recorded outputs.
        ConfigError: a recorded output is too long for the model, or two files have the same workload.
    """
    tokenizer = CorpusTokenizer.load(target.fingerprint.name, special_tokens="parse")
    groups = {}
    for workload in read_workloads(paths, tokenizer, limit):
        outputs = [(trace.prompt, trace.output[:max_tokens]) for trace in workload.traces if trace.prompt]
        if not outputs:
            raise CorpusError(f"workload '{workload.name}' has no trace with a prompt; give each a text to continue")
        requests = [BenchRequest(prompt, len(output), output) for prompt, output in outputs]
        groups[workload.name] = _fitting(requests, target)
    return groups


def read_prompts(path: Path, limit: int | None) -> list[str]:
    """Read the first prompts of a file, which has one of the formats of ``speculant generate``.

    Raises:
        ConfigError: the file can't be read, or a line has no text.
    """
    texts: list[str] = []
    for line in prompt_lines([], path)[:limit]:
        if not isinstance(line.prompt, str) or not line.prompt:
            raise ConfigError(f"{line.location} has no text to continue; write one")
        texts.append(line.prompt)
    return texts


def load_target(config: VerifierConfig) -> TargetModel:
    """Load a model, or create one with random weights.

    Raises:
        ConfigError: the model can't be loaded, or a random model lacks a size or a tokenizer.
    """
    import torch
    from transformers import GptOssForCausalLM

    from speculant_verifier.model import TargetModel
    from speculant_verifier.model.loading import device_named, load_tokenizer, prepare_cpu
    from speculant_verifier.model.progress import quiet_transformers

    quiet_transformers()
    if not config.model_name.startswith(RANDOM):
        return TargetModel.load(config)
    size = config.model_name.removeprefix(RANDOM)
    if size != _REAL and not _SIZE.fullmatch(size):
        raise ConfigError(f"--model: '{size}' is not the size of a random model; write {RANDOM}150M or {RANDOM}{_REAL}")
    if config.tokenizer_name is None:
        raise ConfigError(f"--model {config.model_name} needs a tokenizer; name its folder with --tokenizer")
    device = device_named(config.device)
    if device.type == "cpu":
        prepare_cpu(config)
    tokenizer, fingerprint = load_tokenizer(config)
    automatic = "float32" if device.type == "cpu" else "bfloat16"
    dtype = getattr(torch, automatic if config.dtype == "auto" else config.dtype)
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(0)
        model = GptOssForCausalLM._from_config(_architecture(size, fingerprint.vocabulary_size), dtype=dtype)
    return TargetModel(model, tokenizer, config.model_name, fingerprint, cuda_graphs=config.cuda_graphs)


def describe(target: TargetModel) -> dict[str, Any]:
    """Return a description of the measured model and its device, as JSON values."""
    import torch

    device = target.device
    return {
        "model": target.name,
        "parameters": sum(parameter.numel() for parameter in target.model.parameters()),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "attention": target.model.config._attn_implementation,
    }


def _fitting(requests: list[BenchRequest], target: TargetModel) -> list[BenchRequest]:
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    if longest >= target.max_length:
        raise ConfigError(
            f"a prompt and its continuation have {longest} tokens, but '{target.name}' takes at most "
            f"{target.max_length - 1}; lower --max-tokens or shorten it"
        )
    return requests


def _architecture(size: str, vocabulary_size: int) -> GptOssConfig:
    """Return an architecture of about this size; its hidden size is 512, or less if the embedding would dominate."""
    from transformers import GptOssConfig

    if size == _REAL:
        # Transformers' defaults are the released model's values, except for the layers.
        return GptOssConfig(num_hidden_layers=24, num_local_experts=32, eos_token_id=None, pad_token_id=None)
    num_parameters = round(float(size[:-1]) * _UNITS[size[-1]])
    hidden = _HIDDEN
    while hidden > _NARROWEST and vocabulary_size * hidden > 0.8 * num_parameters:
        hidden //= 2
    # Per layer: 32 experts of a quarter of the width with two matrices each, and about 3 square attention matrices.
    per_layer = _EXPERTS * 3 * hidden * (hidden // 4) + 3 * hidden * hidden
    pairs = (num_parameters - vocabulary_size * hidden) / (2 * per_layer)  # full and sliding attention alternate
    return GptOssConfig(
        vocab_size=vocabulary_size,
        hidden_size=hidden,
        intermediate_size=hidden // 4,
        head_dim=_HEAD,
        num_attention_heads=hidden // _HEAD,
        num_key_value_heads=max(1, hidden // _HEAD // 8),
        num_hidden_layers=2 * max(1, round(pairs)),
        num_local_experts=_EXPERTS,
        num_experts_per_tok=_ACTIVE,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
