"""Decides which weights stay in memory and which are streamed in every pass.

The decision depends only on the sizes of the weights, and no weights are loaded for it. In a dense model, as many
decoder layers as fit stay in memory. The streamed layers are evenly spread, so that each is read while the resident
layers before it are computed. In a mixture of experts, the experts are streamed individually, and all other weights
stay in memory. SpecExec (Svirschevski et al. 2024) streams whole layers instead of single experts. For a GPU, weights
that fit into host memory are streamed from there, and all others from the disk. For a CPU, all streamed weights come
from the disk. Experts in MXFP4 stay packed, both in memory and when streamed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from speculant_graph.config import VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.machine import anonymous_bytes, available_bytes
from speculant_verifier.offload.packed_experts import has_kernels, is_packed, pack
from speculant_verifier.sources import MODEL_SETTING

_RESERVED, _RESERVED_WITH_EXPERTS = 0.23, 0.25
"""Shares of the memory budget that are reserved for the KV cache and for temporary memory of passes: one for dense
models, one for mixtures of experts."""
_LEAST_GB = 0.1
"""Sizes below this number of gigabytes are shown in megabytes."""
_KV_SHARE = 0.4
"""Share of the reserved memory that the KV cache gets."""
_WIDEST = 256
"""Maximum number of nodes of a draft tree; larger trees have hardly ever helped."""
_MOST_SLOTS = 4096
"""Maximum number of experts in a pool: transformers counts the tokens of each expert with a float32 histogram, which is
exact up to this number of experts."""
_NUM_SLABS = 2
"""Number of slabs for streamed layers: one layer is computed while the next is read."""
_TOLERANCE = 1.05
"""Memory counts as short only if its use exceeds the budget by this factor, because the temporary memory of passes
varies."""
_SURE = 1.01
"""Factor on the budget that an error message suggests, because the memory of a process varies."""
_CPU = torch.device("cpu")
_UNKNOWN = 1 << 60
"""Number of free bytes that is assumed if the system does not report it."""
SMALLER = "choose a smaller model ({field}) or fewer bytes per weight (verifier.dtype bfloat16)"
"""The fix that most error messages about model memory suggest."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Placement of a model's weights: the modules that stay in memory, and the modules that are streamed."""

    unit: Literal["layer", "expert"]
    """Unit in which weights are streamed."""
    streamed: tuple[str, ...]
    """Names of the streamed modules, whose weights share slots, in the order of the forward pass."""
    resident: tuple[str, ...]
    """Names of the modules that always stay in memory; if modules are nested, only the outermost is named."""
    unit_bytes: int
    """Size in memory of the largest streamed unit, in bytes."""
    file_bytes: int
    """Size in the checkpoint of the largest streamed unit, in bytes; its dtype may differ from that in memory."""
    num_units: int
    """Total number of units (layers or experts) in the streamed modules."""
    num_slots: int
    """Number of units that fit into memory."""
    least_slots: int
    """Minimum number of slots: two for layers (one is computed, one is read); for experts, the number of experts per
    layer."""
    resident_bytes: int
    """Size of the weights that always stay in memory, in bytes."""
    kv_tokens: int
    """Number of tokens that fit into the KV cache."""
    most_nodes: int
    """Largest useful number of nodes of a draft tree, limited so that the logits of a full batch fit into memory."""
    budget: int
    """Memory limit of the whole process in bytes; with a GPU, the limit of GPU memory."""
    process_bytes: int
    """Bytes that the process used before it loaded the model."""
    most_bytes: int | None
    """Memory use in bytes beyond which memory counts as short; None for no limit."""
    num_chosen: int = 0
    """Number of experts that one token activates, over all layers; 0 if layers are streamed."""
    host_bytes: int | None = None
    """Bytes of host memory for weights that are streamed to a GPU; all other streamed weights are read from the disk.
    None if all streamed weights fit into host memory, or if there is no GPU."""
    is_packed: bool = False
    """Whether the streamed units are experts in MXFP4."""

    @property
    def placement(self) -> tuple[object, ...]:
        """The parts of the plan that determine the cost of passes.

        The share of units in memory is rounded, because free memory varies slightly between starts.
        """
        return self.unit, self.streamed, round(20 * self.num_kept / self.num_units)

    @property
    def num_kept(self) -> int:
        """Number of units that a pass over many tokens finds in memory."""
        return self.num_slots - self.least_slots if self.unit == "layer" else min(self.num_slots, self.num_units)

    @property
    def pass_bytes(self) -> int:
        """Number of bytes of weights that a pass over many tokens reads."""
        return (self.num_units - self.num_kept) * self.file_bytes

    def bytes_of(self, num_tokens: int) -> float:
        """Return the bytes that a pass over ``num_tokens`` tokens reads if all experts are chosen equally often."""
        if self.unit == "layer":
            return self.pass_bytes
        wanted = 1.0 - (1.0 - self.num_chosen / self.num_units) ** num_tokens
        return wanted * self.pass_bytes

    def rows(self, rate: float = 0.0) -> list[tuple[str, str]]:
        """Return the plan as rows of a table.

        Args:
            rate: speed of reading weights in bytes per second; 0 if unknown.
        """
        kept = self.num_kept * self.unit_bytes
        space = f"{_readable(kept)} for {self.num_kept} of {self.num_units} {self.unit}s"
        if self.unit == "layer":
            space += f", {_readable(self.least_slots * self.unit_bytes)} for {self.least_slots} that are read in turn"
        seconds = f": {self.pass_bytes / rate:.2g} s at {rate / 1e9:.1f} GB/s" if rate else ""
        most = self.num_chosen * self.file_bytes
        evenly = f"{_readable(self.bytes_of(1))} if experts are used evenly, {_readable(most)} at most"
        one = [("read in a pass over one token", evenly)]
        on_host = []
        if self.host_bytes is not None:
            on_host = [("in this machine's memory", f"{_readable(self.host_bytes)} of the others")]
        return [
            ("always in memory", _readable(self.resident_bytes)),
            ("space for the others", space),
            *(one if self.unit == "expert" else ()),
            ("read in a pass over many tokens", _readable(self.pass_bytes) + seconds),
            ("keys and values", f"{self.kv_tokens:,} tokens"),
            *on_host,
            ("budget", f"{_readable(self.budget)}, of which the process had taken {_readable(self.process_bytes)}"),
        ]


def plan_for(
    config: PreTrainedConfig,
    dtype: torch.dtype,
    verifier: VerifierConfig,
    device: torch.device = _CPU,
    *,
    may_stream: bool = True,
    later_bytes: int = 0,
) -> Plan | None:
    """Decide which weights stay in memory; return None if all weights fit.

    Args:
        config: the model's configuration.
        dtype: dtype of the weights in memory.
        verifier: settings with the memory limits.
        device: device on which the model runs.
        may_stream: whether weights may be streamed in every pass.
        later_bytes: memory that the process will take before it loads the model, in addition to what it uses now.

    Raises:
        ConfigError: the weights that must stay in memory do not fit; streaming is needed but not allowed; or a host
            budget is set although the model runs on the CPU.
    """
    if device.type == "cpu" and verifier.host_budget:
        raise ConfigError(
            "{field} limits memory besides the GPU's, but the model runs on the CPU",
            fix="leave {field} out: verifier.memory_budget bounds this machine's memory",
            field="verifier.host_budget",
        )
    config = copy.deepcopy(config)  # the next lines change it
    in_file = getattr(config.get_text_config(), "dtype", None) or dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    on_cpu, packed, needed = device.type == "cpu", is_packed(config), _size(model)
    if packed:
        pack(model, dtype)
    total = _size(model)
    if not on_cpu and packed and has_kernels():
        needed = total
    process = anonymous_bytes() + later_bytes if on_cpu else torch.cuda.memory_allocated(device)
    free = available_bytes() if on_cpu else torch.cuda.mem_get_info(device)[0]
    bound = int(verifier.memory_budget)
    budget = bound or process + (_UNKNOWN if free is None else int(verifier.memory_fraction * free))
    wanted = verifier.resident_layers
    # Without a budget there is no setting for the KV cache, which then uses the remaining memory.
    left = budget - process - (int(_RESERVED * budget) if bound else 0)
    if wanted is None and needed <= left:
        return None
    layers = decoder_layers(model)
    if wanted is not None and wanted >= len(layers):
        return None
    experts = {f"{name}.{inner}": found for name, layer in layers.items() for inner, found in _experts_of(model, layer)}
    share = _RESERVED_WITH_EXPERTS if experts else _RESERVED
    reserved = int(share * budget)
    size = f"{_readable(needed)} as {str(dtype).removeprefix('torch.')}"
    reason = f"needs {size}, and {_readable(max(0, left))} are left for weights"
    if wanted is not None:
        reason = f"can't be streamed, which verifier.resident_layers {wanted} requires"
    _require_streamable(model, layers, verifier.model_name, reason, may_stream=may_stream)
    kv_bytes = _kv_bytes(model, dtype)
    kv_reserved = int(_KV_SHARE * reserved)
    kv_tokens = verifier.max_kv_tokens or max(1, kv_reserved // kv_bytes)
    taken = process + reserved + max(0, kv_tokens * kv_bytes - kv_reserved)
    modules: dict[str, nn.Module] = experts or layers
    divisor = next((int(each.num_experts) for each in experts.values()), 1)  # type: ignore[arg-type]
    unit = max(map(_size, modules.values())) // divisor
    fixed = total - sum(map(_size, modules.values()))
    least = divisor if experts else _NUM_SLABS
    num_slots = (budget - taken - fixed) // unit
    if wanted is not None:
        num_slots = min(max(least, divisor * wanted) if experts else least + wanted, num_slots)
    num_slots = min(num_slots, _MOST_SLOTS)
    if num_slots < least:
        needed_mb = math.ceil(_SURE * (fixed + least * unit + taken - reserved) / (1.0 - share) / 1e6)
        fixes = [f"set {{field}} to at least {needed_mb}MB"]
        fixes += ["lower verifier.max_kv_tokens"] if verifier.max_kv_tokens else []
        if dtype.itemsize > torch.bfloat16.itemsize:
            with suppress(ConfigError):
                plan_for(config, torch.bfloat16, verifier, device, later_bytes=later_bytes)
                fixes += ["set verifier.dtype bfloat16"]
        raise ConfigError(
            f"model '{verifier.model_name}' needs {needed_mb:,} MB, but the budget is {budget // 1_000_000:,} MB; "
            f"{_readable(fixed)} of weights must stay in memory, and the process takes {_readable(process)}",
            fix=", or ".join(fixes),
            field="verifier.memory_budget",
        )
    if not experts:
        num_slots = min(num_slots, least + len(modules) - 1)
    streamed = tuple(modules)
    logit_bytes = int((1.0 - _KV_SHARE) * reserved) // verifier.max_batch_size
    return Plan(
        unit="expert" if experts else "layer",
        streamed=streamed,
        resident=tuple(_beside(model, streamed)),
        unit_bytes=unit,
        file_bytes=unit if packed else unit * in_file.itemsize // dtype.itemsize,
        num_units=len(streamed) * divisor,
        num_slots=num_slots,
        least_slots=least,
        resident_bytes=fixed,
        kv_tokens=kv_tokens,
        most_nodes=_most_nodes(model, logit_bytes, kv_tokens // verifier.max_batch_size),
        budget=budget,
        process_bytes=process,
        most_bytes=int(_TOLERANCE * bound) if bound else None,
        num_chosen=len(experts) * int(getattr(config.get_text_config(), "num_experts_per_tok", divisor)),
        host_bytes=None if on_cpu else _host_bytes(total - fixed, verifier),
        is_packed=packed,
    )


def decoder_layers(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the decoder layers by name, in the model's order.

    Raises:
        ConfigError: the model has no decoder layers.
    """
    decoder = model.get_decoder()
    prefix = next((f"{name}." for name, each in model.named_modules() if each is decoder and name), "")
    for name, each in decoder.named_children():
        if isinstance(each, nn.ModuleList) and len(each) == model.config.get_text_config().num_hidden_layers:
            return {f"{prefix}{name}.{index}": layer for index, layer in enumerate(each)}
    raise ConfigError(f"a model of the kind {type(model).__name__} can't be streamed; {SMALLER}", field=MODEL_SETTING)


def _require_streamable(
    model: PreTrainedModel,
    layers: Mapping[str, nn.Module],
    name: str,
    reason: str,
    *,
    may_stream: bool,
) -> None:
    """Reject a model that can't be streamed, or whose streaming is not allowed.

    Args:
        model: the model, without weights.
        layers: its decoder layers.
        name: name of the model, for messages.
        reason: why the model would be streamed, for the message.
        may_stream: whether weights may be streamed in every pass.

    Raises:
        ConfigError: the model can't be streamed, or streaming is not allowed.
    """
    quantization = getattr(model.config, "quantization_config", None)
    if not may_stream:
        why = f"its weights are not streamed; leave it memory by a lower verifier.memory_budget, or {SMALLER}"
    elif quantization is not None and not is_packed(model.config):
        why = "of quantised weights only MXFP4 can be streamed: give a checkpoint in that or in bfloat16 ({field})"
    elif any(len(layer.state_dict()) > len(list(layer.parameters())) for layer in layers.values()):
        why = f"layers of a {type(model).__name__} can't be streamed, because they have more than weights; {SMALLER}"
    else:
        return
    raise ConfigError(f"model '{name}' {reason}; {why}", field=MODEL_SETTING)


def _host_bytes(num_bytes: int, verifier: VerifierConfig) -> int | None:
    """Return how many bytes of host memory a GPU's streamed weights may use; None if all of them fit."""
    available = available_bytes()
    free = _UNKNOWN if available is None else available
    most = int(verifier.host_budget) or int(verifier.memory_fraction * free)
    return None if num_bytes <= most else most


def _experts_of(model: PreTrainedModel, layer: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules whose weights have one row per expert and whose ``forward`` takes expert indices."""
    if not model._can_set_experts_implementation():
        return []
    return [
        (name, module)
        for name, module in layer.named_modules()
        if (count := getattr(module, "num_experts", 0))
        and (own := list(module.parameters(recurse=False)))
        and any(each.ndim == 3 for each in own)
        and all(each.shape[0] == count for each in own)
    ]


def _size(module: nn.Module) -> int:
    return sum(each.nbytes for each in module.parameters())


def _kv_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Return the number of bytes that one token takes in the KV cache."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * dtype.itemsize)


def _most_nodes(model: PreTrainedModel, num_bytes: int, num_tokens: int) -> int:
    """Return how many nodes a row's tree may have if its logits, in two dtypes, may take ``num_bytes`` bytes."""
    vocabulary_size = int(model.config.get_text_config().vocab_size)
    return max(1, min(_WIDEST, num_bytes // (8 * vocabulary_size) - 1, num_tokens // 4))


def _beside(model: nn.Module, streamed: tuple[str, ...], prefix: str = "") -> Iterator[str]:
    for name, _ in (*model.named_parameters(recurse=False), *model.named_buffers(recurse=False)):
        yield prefix + name
    for name, module in model.named_children():
        whole = prefix + name
        if any(each.startswith(f"{whole}.") for each in streamed):
            yield from _beside(module, streamed, f"{whole}.")
        elif whole not in streamed:
            yield whole


def _readable(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= _LEAST_GB * 1e9 else f"{num_bytes / 1e6:.2f} MB"
