"""LoRA adapters of a draft model: checked as a whole before anything changes, then added to a model.

An adapter is a folder in peft's own format, so that other programs load it, too. Beside peft's two files
``speculant.json`` records whose text it learned, and how well it did.
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
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from speculant_graph.corpus.hub import sentence
from speculant_graph.errors import ConfigError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
NOTE_FILE = "speculant.json"
_AGAIN = "Copy or train it again."

_SHAPING = frozenset({
    "alpha_pattern", "exclude_modules", "layers_pattern", "layers_to_transform", "lora_alpha", "r", "rank_pattern",
    "target_modules", "target_parameters", "task_type", "use_rslora",
})  # fmt: skip
_NAMING = frozenset({
    "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "peft_type", "peft_version",
    "revision",
})  # fmt: skip
"""With the above what an adapter may set. The rest changes the base model, imports modules, or is no plain LoRA."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """The note in an adapter's folder."""

    folder: Path
    """Where it is, links resolved: this version stays the same while another is published."""
    digest: str
    """sha256 of the weights' file."""
    base: str
    """Name or folder of the model that it was trained for; empty if that is not recorded."""
    tenants: frozenset[str] | None
    """Whose text it was trained on, and whose sequences alone it may so draft for; None: all."""
    note: Mapping[str, Any]
    """Figures of its training, as ``speculant.json`` has them."""


def read_adapter(folder: Path | str) -> AdapterInfo:
    """Read what an adapter is, without a model.

    Raises:
        ConfigError: there is no LoRA adapter, or one that does more than plain LoRA.
    """
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigError(f"{folder} holds no adapter, it is no folder; give one that 'speculant train' wrote")
    if missing := [name for name in (CONFIG_FILE, WEIGHTS_FILE) if not (path / name).is_file()]:
        raise ConfigError(f"{folder} holds no adapter, it has no {missing[0]}; give one that 'speculant train' wrote")
    config = _read_json(path / CONFIG_FILE)
    note = _read_json(path / NOTE_FILE) if (path / NOTE_FILE).is_file() else {}
    with (path / WEIGHTS_FILE).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _lora_config(path, config)
    base = str(config.get("base_model_name_or_path") or "")
    tenants = note.get("tenants")
    if tenants is not None and not (isinstance(tenants, list) and all(isinstance(each, str) for each in tenants)):
        raise ConfigError(
            f"{path / NOTE_FILE} does not name whose adapter it is, tenants is no list of names. {_AGAIN}"
        )
    return AdapterInfo(path, digest, base, None if tenants is None else frozenset(tenants), note)


def check_adapter(folder: Path | str, model: PreTrainedModel, base_name: str) -> AdapterInfo:
    """Prove that an adapter belongs to a model; neither is changed.

    Args:
        folder: the adapter.
        model: the loaded base, with or without another adapter.
        base_name: the name or folder it was loaded from.

    Raises:
        ConfigError: it was trained for another model, its tensors are not those of this model, or not all numbers are
            finite; one line that ends in what to do.
    """
    require_plain(model)
    info = read_adapter(folder)
    another = f"choose an adapter of '{base_name}', or train one with 'speculant train'"
    # A model may be moved to another folder, or downloaded from the hub into one.
    if info.base and Path(info.base).name != Path(base_name).name:
        raise ConfigError(f"the adapter {folder} is for the model '{info.base}', not for '{base_name}'; {another}")
    expected = _expected_shapes(info.folder, model)
    try:
        tensors = load_file(info.folder / WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"the weights of adapter {folder} are damaged: {sentence(error)} {_AGAIN}") from error
    for name in sorted(tensors.keys() | expected.keys()):
        if name not in tensors or tensors[name].shape != expected.get(name):
            raise ConfigError(
                f"the adapter {folder} has other weights than '{base_name}' needs, first {name}; {another}"
            )
        if not tensors[name].isfinite().all():
            raise ConfigError(f"the adapter {folder} has numbers in {name} that are not finite; copy or train it again")
    return info


def merge(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Add a checked adapter to the weights of a model that has none: no cost per pass, and no way back but loading.

    Args:
        model: as it was loaded: of weights with an adapter in them the next one would be a sum. It is changed.
        folder: :attr:`AdapterInfo.folder`.
    """
    with quiet_peft():
        merged = PeftModel.from_pretrained(model, str(folder)).merge_and_unload(safe_merge=True)
    assert isinstance(merged, PreTrainedModel)
    return merged


def require_plain(model: PreTrainedModel) -> None:
    """Refuse a model whose weights are quantised: matrices can't be added to packed ones.

    Raises:
        ConfigError: they are.
    """
    if getattr(model, "is_quantized", False):
        raise ConfigError(f"'{model.name_or_path}' has quantised weights, which take no adapter; give it in bfloat16")


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Keep back two warnings of peft about itself.

    It uses a name that transformers deprecates, and warns of its own patterns for experts.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        yield


def add_to_note(folder: Path, figures: Mapping[str, Any]) -> None:
    """Add figures to the note in an adapter's folder."""
    note = {**_read_json(folder / NOTE_FILE), **figures}
    (folder / NOTE_FILE).write_text(json.dumps(note), encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {sentence(error)} Copy it again.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no JSON object; copy it again")
    return content


def _lora_config(folder: Path, content: dict[str, Any]) -> LoraConfig:
    if (kind := content.get("peft_type")) != "LORA":
        raise ConfigError(f"the adapter {folder} is of kind {kind}; choose one of kind LORA")
    usual: dict[str, Any] = asdict(LoraConfig())
    for name, value in content.items():
        if name not in _SHAPING | _NAMING and value and value != usual.get(name):
            raise ConfigError(f"the adapter {folder} sets {name}, which plain LoRA does not have; train one without it")
    try:
        return LoraConfig(**{name: content[name] for name in _SHAPING & content.keys()})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{folder / CONFIG_FILE} is damaged: {sentence(error)} {_AGAIN}") from error


def _expected_shapes(folder: Path, model: PreTrainedModel) -> dict[str, torch.Size]:
    """Return names and shapes of an adapter's tensors, as peft makes them for a copy of the model without numbers."""
    config = _lora_config(folder, _read_json(folder / CONFIG_FILE))
    try:
        with torch.device("meta"), quiet_peft():
            adapted = get_peft_model(type(model)(copy.deepcopy(model.config)), config, low_cpu_mem_usage=True)
        state = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"adapter {folder} does not fit the model: {sentence(error)} Train one for it.") from error
    return {name: tensor.shape for name, tensor in state.items()}
