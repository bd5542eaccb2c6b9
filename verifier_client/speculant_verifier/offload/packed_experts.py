"""Experts of gpt-oss in their published format, MXFP4: they stay packed, and are decoded during multiplication.

In MXFP4, 32 numbers of four bits (E2M1) share one exponent (E8M0), so 32 weights take 17 bytes. On a CPU, an expert is
decoded a few rows at a time, into a buffer that fits into the CPU cache. The decoded rows are multiplied with the
expert's inputs before the next rows are decoded. Decoding a whole expert at once would write four to eight times its
packed size to memory, and then read it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.import_utils import is_kernels_available, is_triton_available
from transformers.utils.quantization_config import QuantizationConfigMixin

from speculant_graph import _core
from speculant_graph.errors import ConfigError
from speculant_verifier.half_precision import lacks_instructions, spaces
from speculant_verifier.offload.weight_files import require_weights
from speculant_verifier.sources import MODEL_SETTING

BLOCK = 32
"""Number of values that share an exponent in MXFP4."""
_TOGETHER = 4
"""Number of experts that a GPU decodes at a time. An expert of gpt-oss-20b takes 50 MB in bfloat16."""
_METHOD = "speculant-packed"
_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The 16 values of E2M1, indexed by their four bits."""


def is_packed(config: PreTrainedConfig) -> bool:
    """Return whether a checkpoint stores its experts in MXFP4."""
    quantization = getattr(config, "quantization_config", None)
    return isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"


def has_kernels() -> bool:
    """Return whether transformers has GPU kernels for packed experts; otherwise it decodes all experts."""
    return bool(is_triton_available("3.4.0") and is_kernels_available())


class PackedExperts(nn.Module):
    """Packed experts of one layer, or of all layers; every weight has one row per expert."""

    _apply_gate: Any = GptOssExperts._apply_gate

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype) -> None:
        """Create zero weights with the shapes from a model's configuration."""
        super().__init__()
        self.num_experts, self.hidden_size = config.num_local_experts, config.hidden_size
        self.intermediate_size = config.intermediate_size
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        for name, rows, columns in (
            ("gate_up_proj", 2 * self.intermediate_size, self.hidden_size),
            ("down_proj", self.hidden_size, self.intermediate_size),
        ):
            blocks = (self.num_experts, rows, columns // BLOCK)
            for part, shape, kind in (
                ("_blocks", (*blocks, BLOCK // 2), torch.uint8),
                ("_scales", blocks, torch.uint8),
                ("_bias", blocks[:2], dtype),
            ):
                weight = torch.zeros(shape, dtype=kind)
                self.register_parameter(name + part, nn.Parameter(weight, requires_grad=False))

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        """Compute the weighted sum of the experts' outputs for every token.

        Args:
            hidden_states: inputs, ``[n, hidden]``.
            router_indices: indices of the experts of every token, ``[n, k]``.
            routing_weights: weights of every token's experts, ``[n, k]``.

        Returns:
            The weighted sum for every token, ``[n, hidden]``.
        """
        num_tokens, num_chosen = router_indices.shape
        chosen, order = router_indices.reshape(-1).sort(stable=True)
        experts, counts = chosen.unique_consecutive(return_counts=True)
        inputs = hidden_states[order // num_chosen]
        compute = self._one_by_one if inputs.device.type == "cpu" else self._together
        outputs = torch.empty_like(inputs).index_copy_(0, order, compute(inputs, experts, counts.tolist()))
        weighted = outputs * routing_weights.reshape(-1, 1)
        return weighted.view(num_tokens, num_chosen, -1).sum(dim=1).to(hidden_states.dtype)

    def _one_by_one(self, inputs: Tensor, experts: Tensor, counts: Sequence[int]) -> Tensor:
        """Compute every expert's outputs for its input rows; the rows are ordered by expert."""
        outputs = []
        for expert, rows in zip(experts.tolist(), inputs.split(list(counts)), strict=True):
            states = self._project("gate_up_proj", expert, rows)
            outputs.append(self._project("down_proj", expert, self._apply_gate(states)))
        return torch.cat(outputs)

    def _together(self, inputs: Tensor, experts: Tensor, counts: Sequence[int]) -> Tensor:
        """Compute the experts' outputs in few operations: on a GPU, launching one takes longer than running it."""
        outputs, first = [], 0
        for start in range(0, len(counts), _TOGETHER):
            chunk, num_rows = experts[start : start + _TOGETHER], counts[start : start + _TOGETHER]
            rows = inputs[first : first + sum(num_rows)].split(list(num_rows))
            first += sum(num_rows)
            states = self._project_all("gate_up_proj", chunk, nn.utils.rnn.pad_sequence(list(rows), batch_first=True))
            states = self._project_all("down_proj", chunk, self._apply_gate(states))
            outputs += [each[:count] for each, count in zip(states.unbind(), num_rows, strict=True)]
        return torch.cat(outputs)

    def _project_all(self, name: str, experts: Tensor, inputs: Tensor) -> Tensor:
        """Multiply the input rows of each expert, ``[e, n, inner]``, by its matrix, and add the bias."""
        parts: Any = self._parameters
        blocks, scales, bias = (parts[f"{name}{part}"][experts] for part in ("_blocks", "_scales", "_bias"))
        decoded = decode(blocks, scales, inputs.new_empty(*bias.shape, inputs.shape[-1]))
        return torch.baddbmm(bias[:, None], inputs, decoded.transpose(1, 2))

    def _project(self, name: str, expert: int, inputs: Tensor) -> Tensor:
        """Multiply input rows by one of an expert's matrices, and add the bias."""
        parts: Any = self._parameters
        blocks, scales, bias = (parts[f"{name}{part}"][expert] for part in ("_blocks", "_scales", "_bias"))
        outputs = inputs.new_empty(len(inputs), len(blocks))
        if lacks_instructions(inputs.dtype):
            inputs = inputs.float()
        for rows, space in spaces(len(blocks), inputs.shape[1], inputs.dtype):
            outputs[:, rows] = nn.functional.linear(inputs, decode(blocks[rows], scales[rows], space))
        return outputs.add_(bias)


def decode(blocks: Tensor, scales: Tensor, into: Tensor) -> Tensor:
    """Decode rows of MXFP4 (OCP Microscaling Formats 1.0); the result is exact.

    Args:
        blocks: two values per byte, the low half first, ``[..., n, 16]``.
        scales: exponents with a bias of 127, ``[..., n]``.
        into: contiguous tensor that receives the values, ``[..., 32 n]``.
    """
    if into.device.type == "cpu" and into.dtype in (torch.float32, torch.bfloat16):
        numbers = into.view(torch.uint16) if into.dtype == torch.bfloat16 else into
        _core.decode_mxfp4(blocks.view(-1).numpy(), scales.view(-1).numpy(), numbers.view(-1).numpy())
        return into
    pairs, powers = _tables(into.device)
    values = pairs[blocks.int()].flatten(-2)
    torch.mul(values, powers[scales.int()], out=into.view(values.shape))
    return into


@cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tables of the two values of each byte, ``[256, 2]``, and the power of two of each scale, ``[256, 1]``."""
    numbers = torch.tensor(_NUMBERS, device=device)
    pairs = torch.stack([numbers.repeat(16), numbers.repeat_interleave(16)], dim=-1)
    return pairs, torch.exp2(torch.arange(256, device=device) - 127.0)[:, None]


def pack(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Replace the experts of a model on the meta device with packed experts.

    Raises:
        ConfigError: the sizes of the experts are not multiples of the block size.
    """
    config = model.config
    if config.hidden_size % BLOCK or config.intermediate_size % BLOCK:
        raise ConfigError(
            f"experts of {config.hidden_size} times {config.intermediate_size} numbers can't be in MXFP4, whose blocks "
            f"have {BLOCK}; correct hidden_size and intermediate_size in the checkpoint's config.json ({{field}})",
            field=MODEL_SETTING,
        )
    with torch.device("meta"):
        for name, module in list(model.named_modules()):
            if type(module) is GptOssExperts:
                model.set_submodule(name, PackedExperts(config, dtype))


def require_packed_weights(folder: Path, config: PreTrainedConfig) -> None:
    """Raise an error if a checkpoint in MXFP4 lacks a weight, or holds it in another shape.

    Raises:
        ConfigError: a file is damaged, or a weight is missing or does not match.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    pack(model, model.dtype)
    require_weights(folder, dict(model.named_parameters()))


def keep_packed(config: PreTrainedConfig) -> None:
    """Configure transformers to load a checkpoint's experts in packed form."""
    config.quantization_config = {"quant_method": _METHOD}


@register_quantization_config(_METHOD)
class _PackedConfig(QuantizationConfigMixin):
    """The quantization configuration that :func:`keep_packed` sets."""

    def __init__(self, **_: object) -> None:
        super().__init__(quant_method=_METHOD)  # type: ignore[arg-type]


@register_quantizer(_METHOD)
class _PackedQuantizer(HfQuantizer):
    """Hook by which transformers replaces expert modules before it loads weights."""

    is_trainable = False

    def is_serializable(self) -> bool:
        return False

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        pack(model, model.dtype)
