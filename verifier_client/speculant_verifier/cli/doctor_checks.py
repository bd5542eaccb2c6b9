"""The verifier's checks for ``speculant doctor``. transformers, which imports slowly, is imported only if needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from speculant_graph.cli.doctor import MODEL, CheckResult
from speculant_graph.config import VerifierConfig
from speculant_graph.corpus.hub import first_line
from speculant_graph.errors import ConfigError
from speculant_graph.machine import available_bytes
from speculant_graph.types import Fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_LATER_BYTES = 32_000_000
"""Memory that a verifier takes before it loads its model, in addition to this process: mostly imported modules."""


def check_devices() -> Iterator[CheckResult]:
    """Report the GPUs that torch sees."""
    if not torch.cuda.is_available():
        yield CheckResult("gpu", "ok", f"none: the model runs on the CPU (torch {torch.__version__})")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        major, minor = torch.cuda.get_device_capability(index)
        memory = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
        yield CheckResult("gpu", "ok", f"cuda:{index} {name}, compute capability {major}.{minor}, {memory}")


def check_model(config: VerifierConfig, *, load: bool, tokenizers: dict[str, Fingerprint]) -> Iterator[CheckResult]:
    """Check a model's configuration, weights, size and tokenizer; if ``load`` is set, also load the model.

    Args:
        config: the model and its device.
        load: load the whole model.
        tokenizers: dictionary to which the tokenizer's fingerprint is added.

    Raises:
        ConfigError: the model can't be used; the message says why.
    """
    from transformers import AutoConfig

    from speculant_verifier.model import TargetModel
    from speculant_verifier.model.loading import device_named, load_tokenizer
    from speculant_verifier.model.progress import quiet_transformers
    from speculant_verifier.sources import access_token, is_model_local

    quiet_transformers()
    device = device_named(config.device)
    is_local = is_model_local(config)
    try:
        described = AutoConfig.from_pretrained(config.model_name, token=access_token(config), local_files_only=is_local)
        model = _without_weights(described, config.model_name)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"can't load model '{config.model_name}': {first_line(error)}", fix="check the name or the folder"
        ) from error
    tokenizer: Fingerprint | ConfigError
    try:  # first, because its memory belongs to the process that is predicted
        _, tokenizer = load_tokenizer(config)
    except ConfigError as error:
        tokenizer = error
    yield _size(config, described, model, device)  # does not need weights
    if isinstance(tokenizer, ConfigError):
        raise tokenizer
    tokenizers[MODEL] = tokenizer
    _require_weights(Path(config.model_name), described)
    if not load:
        yield CheckResult("model", "ok", f"{config.model_name}, {described.model_type}; --verify loads it")
        return
    target = TargetModel.load(config)
    yield CheckResult("model", "ok", f"{config.model_name}, {described.model_type}, loaded on {target.device}")


def _without_weights(described: PreTrainedConfig, name: str) -> PreTrainedModel:
    """Return a model without weights; reject architectures that can't verify drafts."""
    from transformers import AutoModelForCausalLM

    from speculant_verifier.model.loading import check_architecture, sliding_layers

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(described)
    check_architecture(model, name)
    sliding_layers(described.get_text_config(), name)
    return model


def _require_weights(folder: Path, described: PreTrainedConfig) -> None:
    """Reject a folder whose weights can't be loaded. A model on the hub passes, because it is not downloaded yet."""
    _require_quantizer(described)
    if not folder.is_dir():
        return
    from speculant_verifier.offload.packed_experts import is_packed, require_packed_weights
    from speculant_verifier.offload.weight_files import require_whole

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            needed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(name for name in needed if not (folder / name).is_file())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{index} is damaged", fix="download the model again") from error
        if missing:
            raise ConfigError(
                f"{folder} lacks {len(missing)} files of weights, first {missing[0]}", fix="download it again"
            )
    elif not (folder / "model.safetensors").is_file() and not any(folder.glob("*.bin")):
        raise ConfigError(f"{folder} has neither {index.name} nor model.safetensors", fix="download the model again")
    require_whole(folder)
    if is_packed(described):
        require_packed_weights(folder, described)


def _require_quantizer(described: PreTrainedConfig) -> None:
    """Reject a quantisation for which this machine lacks a package or a device."""
    from transformers.quantizers.auto import AutoHfQuantizer

    from speculant_verifier.offload.packed_experts import is_packed

    quantization = getattr(described, "quantization_config", None)
    if quantization is None or is_packed(described):
        return
    try:
        AutoHfQuantizer.from_config(quantization, pre_quantized=True).validate_environment()
    except (ImportError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"the model can't be loaded: {first_line(error)}", fix="install what it needs, or choose another model"
        ) from error


def _size(
    config: VerifierConfig, described: PreTrainedConfig, model: PreTrainedModel, device: torch.device
) -> CheckResult:
    """Report the memory that a model needs, and the share that is streamed from disk.

    If the model does not fit, return a failed check instead of raising an error.
    """
    from speculant_verifier.offload import plan_for
    from speculant_verifier.offload.packed_experts import has_kernels, is_packed, pack
    from speculant_verifier.offload.weight_files import bytes_per_second

    declared = getattr(described, "dtype", None) or torch.float32
    kind = (
        (torch.float32 if device.type == "cpu" else declared)
        if config.dtype == "auto"
        else getattr(torch, config.dtype)
    )
    count = sum(each.numel() for each in model.parameters())
    needed = count * kind.itemsize
    detail = f"{count / 1e6:,.1f}M parameters, {needed / 1e9:.2f} GB as {str(kind).removeprefix('torch.')}"
    is_quantised = getattr(described, "quantization_config", None) is not None
    if packed := is_packed(described):
        try:
            pack(model, kind)
        except ConfigError as error:
            return CheckResult("model size", "fail", error.message, error.fix)
        num_bytes = sum(each.numel() * (2 if each.is_floating_point() else 1) for each in model.parameters())
        detail += f", {num_bytes / 1e9:.2f} GB with its experts in MXFP4, as in the checkpoint"
        if device.type == "cuda" and has_kernels():
            needed = num_bytes
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if free is None:
        return CheckResult("model size", "ok", detail)
    detail += f"; {free / 1e9:.1f} GB are free on {device}"
    can_stream = device.type == "cpu" or not is_quantised or packed
    try:
        plan = plan_for(described, kind, config, device, later_bytes=_LATER_BYTES) if can_stream else None
    except ConfigError as error:
        return CheckResult("model size", "fail", f"{detail}\n{error.message}", error.fix)
    lower = "lower --memory-budget, which exceeds the free memory" if config.memory_budget > free else ""
    if plan is not None:
        rate = bytes_per_second(Path(config.model_name)) if device.type == "cpu" else 0.0
        detail = "\n".join([detail, *(f"{name}: {value}" for name, value in plan.rows(rate))])
        return CheckResult("model size", "warn", detail, lower or "more memory makes it faster: see docs/offloading.md")
    if needed > free and can_stream:
        return CheckResult("model size", "fail", detail, lower or "choose a smaller model, or --dtype bfloat16")
    if needed > 0.8 * free:
        return CheckResult(
            "model size", "warn", detail, "lower verifier.max_kv_tokens, because keys and values need memory, too"
        )
    return CheckResult("model size", "ok", detail)
