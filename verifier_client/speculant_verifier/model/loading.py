"""Loads checkpoints: chooses dtype and device, rejects unsupported models, and raises errors that suggest a fix."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from loguru import logger
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.quantization_config import Mxfp4Config

from speculant_graph.config import VerifierConfig
from speculant_graph.corpus.hub import sentence
from speculant_graph.corpus.tokenize import CorpusTokenizer, fingerprint_of
from speculant_graph.errors import ConfigError
from speculant_graph.types import Fingerprint
from speculant_verifier.model.attention import register
from speculant_verifier.model.progress import patient_progress
from speculant_verifier.offload import OFFLOAD, SMALLER, Offload, Plan, plan_for
from speculant_verifier.offload.packed_experts import is_packed, keep_packed, require_packed_weights
from speculant_verifier.offload.weight_files import bytes_per_second, require_whole
from speculant_verifier.sources import (
    MODEL_SETTING,
    TOKENIZER_SETTING,
    access_token,
    is_model_local,
    is_tokenizer_local,
)

_FIX = "Give a folder with a checkpoint, or the hub name of a model you may download ({field})."
_FIX_FOLDER = "Download the model's files again, or give another folder ({field})."
_FIX_PACKAGE = "Install what it needs, or give another model ({field})."
_DEVICE = "verifier.device"
_SAMPLE = 1 << 28
"""Number of bytes that are read to measure the speed of the disk."""


def prepare_cpu(config: VerifierConfig) -> None:
    """Configure this process for computation on a CPU; call this before the first tensor is created."""
    torch.set_num_threads(config.num_threads or max(1, (os.cpu_count() or 1) - 1))
    # The logits of a pass take up to 100 MB, which are allocated and freed in every step. With 4 KB pages this takes
    # several milliseconds, and page faults take an eighth of the pass.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def load_model(config: VerifierConfig, *, may_stream: bool = True, may_pack: bool = True) -> PreTrainedModel:
    """Load all weights with the requested dtype, and place them on their device.

    Weights in MXFP4 stay packed if they are streamed or transformers has GPU kernels for them; otherwise they are
    decoded.

    Args:
        config: the model.
        may_stream: whether weights that do not fit into memory may be read again in every pass.
        may_pack: whether MXFP4 weights may stay packed.

    Raises:
        ConfigError: the checkpoint can't be read, lacks weights, or does not fit into memory, or the device does not
            exist.
    """
    device = device_named(config.device)
    if device.type == "cpu":
        prepare_cpu(config)
    is_local, token = is_model_local(config), access_token(config)
    dtype = "float32" if config.dtype == "auto" and device.type == "cpu" else config.dtype
    options: dict[str, Any] = {}
    plan = folder = None
    device_map: dict[str, Any] = {"": device}
    with ExitStack() as if_it_fails, patient_progress():
        try:
            model_config = AutoConfig.from_pretrained(config.model_name, token=token, local_files_only=is_local)
            if is_packed(model_config) and os.path.isdir(config.model_name):
                require_packed_weights(Path(config.model_name), model_config)
            plan = _plan(model_config, dtype, config, device, may_stream)
            if plan is not None:
                # oneDNN caches compiled kernels for up to 1,024 shapes. Experts get any number of tokens, so the cache
                # takes 200 MB.
                os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8")
                folder = TemporaryDirectory(prefix="speculant-weights-")
                if_it_fails.callback(folder.cleanup)
                device_map = dict.fromkeys(plan.resident, device) | dict.fromkeys(plan.streamed, "disk")
                options["offload_folder"] = folder.name
            if plan is not None and plan.is_packed:
                keep_packed(model_config)
            elif (device.type == "cpu" or not may_pack) and is_packed(model_config):
                options["quantization_config"] = Mxfp4Config(dequantize=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                config.model_name,
                config=model_config,
                dtype=dtype,
                token=token,
                local_files_only=is_local,
                # Quantised weights must be loaded directly to their device; moving them later fails.
                device_map=device_map,
                attn_implementation=register(),
                output_loading_info=True,
                **options,
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, MemoryError, SafetensorError) as error:
            # On a CPU torch reports lack of memory as a generic error.
            if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error):
                raise ConfigError(
                    f"model '{config.model_name}' does not fit into the memory of '{device}'; {SMALLER}",
                    field=MODEL_SETTING,
                ) from error
            if isinstance(error, SafetensorError):
                require_whole(Path(config.model_name))  # names the file
            fix = _FIX_FOLDER if os.path.isdir(config.model_name) else _FIX
            raise ConfigError(
                f"can't load model '{config.model_name}': {sentence(error)} "
                f"{_FIX_PACKAGE if isinstance(error, ImportError) else fix}",
                field=MODEL_SETTING,
            ) from error
        model: PreTrainedModel
        model, report = loaded
        # transformers fills missing weights with random numbers, and the model would decode without an error.
        if missing := sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"]):
            raise ConfigError(
                f"the checkpoint of model '{config.model_name}' lacks {len(missing)} weights of its architecture, "
                f"first {missing[0]}; download it again, or give another with {{field}}",
                field=MODEL_SETTING,
            )
        if plan is not None and folder is not None:
            setattr(model, OFFLOAD, Offload(model, plan, folder))
        if_it_fails.pop_all()
    return model


def load_tokenizer(config: VerifierConfig) -> tuple[PreTrainedTokenizerFast, Fingerprint]:
    """Load the tokenizer and compute its fingerprint.

    Raises:
        ConfigError: the tokenizer can't be read, or is not a fast tokenizer.
    """
    is_local, token = is_tokenizer_local(config), access_token(config)
    name = config.tokenizer_name or config.model_name
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, token=token, local_files_only=is_local)
    except Exception as error:  # the tokenizers library raises bare exceptions, and damaged files cause any error
        setting = TOKENIZER_SETTING if config.tokenizer_name else MODEL_SETTING
        if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "tokenizer.json")):
            raise ConfigError(
                f"folder {name} holds no tokenizer: it needs tokenizer.json and tokenizer_config.json; "
                "set {field} to one that has them",
                field=setting,
            ) from error
        raise ConfigError(
            f"can't load tokenizer '{name}': {sentence(error)} Set {{field}} to a folder with another, or a hub name.",
            field=setting,
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(f"the tokenizer of '{name}' is not a fast one; choose a model with a tokenizer.json")
    try:
        # Graphs are built from the tokenizer file alone, but transformers may add special tokens from other files.
        return tokenizer, CorpusTokenizer.load(name, token).fingerprint
    except ConfigError:  # no such file: transformers converted an older format
        return tokenizer, fingerprint_of(name, tokenizer.backend_tokenizer)


def device_named(name: str) -> torch.device:
    """Return the device that a setting names.

    Raises:
        ConfigError: there is no device with this name.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    usable = "use auto, cpu or cuda" if torch.cuda.is_available() else "use auto or cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device '{name}'", fix=f"{usable} ({{field}})", field=_DEVICE) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"models can't run on '{name}'", fix=f"{usable} ({{field}})", field=_DEVICE)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device '{name}' was requested but torch sees no GPU", fix="use {field} cpu", field=_DEVICE)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device '{name}' was requested but torch sees {torch.cuda.device_count()} GPUs",
            fix="use {field} auto",
            field=_DEVICE,
        )
    return device


def _plan(
    model_config: PreTrainedConfig, dtype: str, config: VerifierConfig, device: torch.device, may_stream: bool
) -> Plan | None:
    """Return the plan for streaming weights; None if all weights stay in memory.

    Raises:
        ConfigError: the weights do not fit into memory, and can't be streamed.
    """
    is_quantised = getattr(model_config, "quantization_config", None) is not None
    if device.type != "cpu" and is_quantised and not is_packed(model_config):
        return None  # the size is known only after loading
    declared = getattr(model_config.get_text_config(), "dtype", None) or torch.float32
    number_type = declared if dtype == "auto" else getattr(torch, dtype)
    plan = plan_for(model_config, number_type, config, device, may_stream=may_stream)
    if plan is None:
        return None
    folder = Path(config.model_name)
    rate = bytes_per_second(folder, _SAMPLE) if device.type == "cpu" and folder.is_dir() else 0.0
    rows = "; ".join(f"{name}: {value}" for name, value in plan.rows(rate))
    source = "the disk" if device.type == "cpu" else "this machine's memory"
    wanted = config.resident_layers
    reason = "does not fit into memory" if wanted is None else f"has verifier.resident_layers {wanted}"
    logger.info("'{}' {}, so passes read weights from {}. {}", config.model_name, reason, source, rows)
    return plan


_EXPERTS_IMPLEMENTATION = "grouped_mm"


def check_architecture(model: PreTrainedModel, name: str) -> None:
    """Reject models whose attention would not apply the masks correctly.

    Raises:
        ConfigError: the model's attention can't be replaced, or uses logit soft-capping, which is not supported.
    """
    config = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False) or getattr(config, "attn_logit_softcapping", None):
        raise ConfigError(
            f"model '{name}' ({type(model).__name__}) has attention that can't verify drafts exactly yet; "
            "choose a model of the gpt-oss, Llama, Mistral or Qwen families"
        )


def sliding_layers(config: PreTrainedConfig, name: str) -> tuple[bool, ...]:
    """Return, for each layer, whether it uses a sliding window.

    If the model does not declare layer types, all layers have the same type.

    Raises:
        ConfigError: a layer type has state that masks can't roll back.
    """
    declared = getattr(config, "layer_types", None)
    if declared is None:
        has_window = bool(getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True))
        return (has_window,) * int(config.num_hidden_layers)
    if unknown := set(declared) - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"model '{name}' has layers of kind {', '.join(sorted(unknown))}, which can't be verified yet; "
            "choose a model with full or sliding attention"
        )
    return tuple(kind == "sliding_attention" for kind in declared)


def choose_experts(model: PreTrainedModel) -> None:
    """Use grouped matrix products for experts, if the model supports them.

    The alternative 'batched_mm' copies expert weights once per token. With 'batched_mm', a pass over a draft would cost
    as much as separate passes for all its tokens.
    """
    if model._can_set_experts_implementation():
        model.set_experts_implementation(_EXPERTS_IMPLEMENTATION)
