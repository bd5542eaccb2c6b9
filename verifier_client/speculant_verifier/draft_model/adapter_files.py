"""Reads LoRA adapters and merges them into a copy of the draft model; a bad adapter leaves the original unchanged.

An adapter is a folder in peft's own format, so other programs can load it, too. In addition to peft's two files, the
folder holds ``speculant.json``, which lists the tenants of the training text and figures of the training.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import Linear, Module, Parameter
from transformers import PreTrainedModel

from speculant_graph.corpus.hub import sentence
from speculant_graph.errors import ConfigError
from speculant_graph.files import replace_bytes

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
NOTE_FILE = "speculant.json"
_AGAIN = "Copy or train it again."

_SHAPING = frozenset({
    "alpha_pattern", "bias", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_bias", "modules_to_save", "r", "rank_pattern", "target_modules",
    "target_parameters", "task_type", "trainable_token_indices", "use_dora", "use_rslora",
})  # fmt: skip
"""Settings of peft that define an adapter's weights."""
_OF_TRAINING = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode", "init_lora_weights",
    "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "revision", "runtime_config",
})  # fmt: skip
"""Settings of peft that have no effect on a trained adapter. Any other setting of peft, outside ``_SHAPING`` and
``_OF_TRAINING``, changes a layer's output."""
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Values of ``init_lora_weights`` that do not change the base model's weights."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """Description of an adapter, read from its folder."""

    folder: Path
    """Path of the adapter's folder, with symbolic links resolved. The resolved path still leads to this version of the
    adapter after a new version is published."""
    digest: str
    """sha256 of the weights file."""
    base: str
    """Name or folder of the adapter's base model; empty if not recorded."""
    tenants: frozenset[str] | None
    """Tenants of the training text; the adapter may draft only for their sequences. None means that the adapter may
    draft for all tenants."""
    note: Mapping[str, Any]
    """Figures of the adapter's training, from ``speculant.json``."""
    config: LoraConfig
    """LoRA configuration of the adapter."""


def read_adapter(folder: Path | str) -> AdapterInfo:
    """Read the description of an adapter, without loading a model.

    Raises:
        ConfigError: the folder holds no LoRA adapter, or the adapter uses an unsupported variant of LoRA.
    """
    path = Path(folder).resolve()
    if missing := [name for name in (CONFIG_FILE, WEIGHTS_FILE) if not (path / name).is_file()]:
        raise ConfigError(f"{folder} holds no adapter: {missing[0]} is missing; give one that 'speculant train' wrote")
    content = _read_json(path / CONFIG_FILE)
    note = _read_json(path / NOTE_FILE) if (path / NOTE_FILE).is_file() else {}
    with (path / WEIGHTS_FILE).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    tenants = note.get("tenants")
    if not isinstance(tenants, list | None):
        raise ConfigError(f"{path / NOTE_FILE} does not name the adapter's tenants: tenants is not a list. {_AGAIN}")
    return AdapterInfo(
        folder=path,
        digest=digest,
        base=str(content.get("base_model_name_or_path") or ""),
        tenants=None if tenants is None else frozenset(tenants),
        note=note,
        config=_lora_config(path, content),
    )


def with_adapter(model: PreTrainedModel, base_name: str, folder: Path | str) -> tuple[PreTrainedModel, AdapterInfo]:
    """Merge an adapter into the weights of a copy of a model; return the copy, whose passes take no extra time.

    Args:
        model: the base model, which stays unchanged. If the base model's weights are quantised, for example to four
            bits, the copy's weights are dequantised.
        base_name: the name or folder from which the base model was loaded.
        folder: the adapter.

    Raises:
        ConfigError: the base's weights can't be dequantised, the adapter was trained for another model, its tensors do
            not match this model, or some numbers are not finite. The error message is one line that ends with the fix.
    """
    info = read_adapter(folder)
    require_base(info, base_name)
    try:
        # A copy: loading the checkpoint again would change torch's default dtype for the whole process.
        with quiet_peft():
            adapted = get_peft_model(plain(copy.deepcopy(model)), info.config)
            load_weights(adapted, base_name, info)
            separated = _separate_tied(adapted)
            if info.config.lora_bias:
                _add_biases(adapted)
            merged = adapted.merge_and_unload(safe_merge=True)
    except (SafetensorError, OSError, RuntimeError, MemoryError, TypeError, ValueError) as error:
        raise _unusable(folder, base_name, error) from error
    assert isinstance(merged, PreTrainedModel)
    if separated:
        _tie_if_equal(merged)
    return merged, info


def require_base(info: AdapterInfo, base_name: str) -> None:
    """Reject an adapter that was trained for another base model.

    Raises:
        ConfigError: the adapter is for another model.
    """
    # The base model may have been moved, or downloaded from the hub into a folder.
    if info.base and Path(info.base).name != Path(base_name).name:
        raise ConfigError(
            f"the adapter {info.folder} is for the model '{info.base}', not for '{base_name}'; {_another(base_name)}"
        )


def load_weights(adapted: Module, base_name: str, info: AdapterInfo) -> None:
    """Load an adapter's weights into a model with LoRA layers of the same shape.

    Args:
        adapted: the model with peft's layers.
        base_name: the name or folder from which the model was loaded, for messages.
        info: the adapter.

    Raises:
        ConfigError: the file is damaged, or is for another model.
    """
    try:
        tensors = load_file(info.folder / WEIGHTS_FILE)
        needed = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        loaded: Any = set_peft_model_state_dict(adapted, tensors)
    except (SafetensorError, OSError, RuntimeError, MemoryError, TypeError, ValueError) as error:
        raise _unusable(info.folder, base_name, error) from error
    if not needed <= tensors.keys() or loaded.unexpected_keys:
        raise ConfigError(
            f"the weights of the adapter {info.folder} do not fit the layers of '{base_name}'; {_another(base_name)}"
        )


def _another(base_name: str) -> str:
    return f"choose an adapter of '{base_name}', or train one with 'speculant train'"


def _unusable(folder: Path | str, base_name: str, error: Exception) -> ConfigError:
    return ConfigError(f"adapter {folder} can't be added to '{base_name}': {sentence(error)} {_AGAIN}")


def _separate_tied(model: Module) -> bool:
    """Untie layers that share a weight matrix, because an adapter changes only one of the layers.

    Returns:
        Whether any layers shared a weight matrix before.
    """
    owners: set[int] = set()
    found = False
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in owners:
                module.register_parameter(name, Parameter(parameter.detach().clone(), parameter.requires_grad))
                found = True
            owners.add(id(parameter))
    return found


def _add_biases(model: Module) -> None:
    """Add a zero bias to layers that have no bias but whose adapter has a bias."""
    for layer in model.modules():
        base = layer.get_base_layer() if isinstance(layer, LoraLayer) else None
        if isinstance(base, Linear) and base.bias is None:
            base.bias = Parameter(base.weight.new_zeros(base.out_features), requires_grad=False)


def _tie_if_equal(model: PreTrainedModel) -> None:
    """Tie the embedding and the LM head again if they are equal; otherwise mark them as untied in the config."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding.weight, Parameter)
    assert isinstance(head.weight, Parameter)
    is_equal = torch.equal(embedding.weight, head.weight)
    if is_equal:
        head.weight = embedding.weight
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = is_equal  # peft has changed it


def plain(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model that can take an adapter; if its weights are quantised, dequantise them in place.

    Raises:
        ConfigError: transformers can't dequantise weights of this kind.
    """
    if not getattr(model, "is_quantized", False):
        return model
    try:
        unpacked: PreTrainedModel = model.dequantize()
    except (NotImplementedError, ImportError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the weights of '{model.name_or_path}' can't be unpacked here, and take no adapter ({sentence(error)})",
            fix="give it in bfloat16",
        ) from error
    return unpacked


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Suppress three warnings from peft that are irrelevant here.

    Peft uses a name that transformers deprecates, warns about its own patterns for experts, and reports that it unties
    weights. This module ties the untied weights again, if they are equal.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        warnings.filterwarnings("ignore", "Input and output embeddings are no longer tied", UserWarning)
        yield


def add_to_note(folder: Path, figures: Mapping[str, Any]) -> None:
    """Add figures to ``speculant.json`` in an adapter's folder."""
    note = {**_read_json(folder / NOTE_FILE), **figures}
    replace_bytes(folder / NOTE_FILE, json.dumps(note).encode())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {sentence(error)} {_AGAIN}") from error


def _lora_config(folder: Path, content: dict[str, Any]) -> LoraConfig:
    if (kind := content.get("peft_type")) != "LORA":
        raise ConfigError(f"the adapter {folder} is of kind {kind}; choose one of kind LORA")
    start = content.get("init_lora_weights")
    if start not in _PLAIN_STARTS:
        raise ConfigError(
            f"the adapter {folder} has init_lora_weights = {start!r}, which changes the weights of the base model",
            fix="convert it: load it with peft and save it with path_initial_model_for_weight_conversion",
        )
    defaults: dict[str, Any] = asdict(LoraConfig())
    for name in sorted(content.keys() - _SHAPING - _OF_TRAINING):
        if name not in defaults:
            logger.warning("adapter {}: the setting {} is unknown to this release of peft and is ignored", folder, name)
        elif content[name] and content[name] != defaults[name]:
            raise ConfigError(
                f"the adapter {folder} sets {name}, so it is more than plain LoRA",
                fix="train one without it",
            )
    try:
        return LoraConfig(**{name: content[name] for name in _SHAPING & content.keys()})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{folder / CONFIG_FILE} is damaged: {sentence(error)} {_AGAIN}") from error
