"""A loaded model whose weights are partly on the disk."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

from accelerate.hooks import remove_hook_from_submodules
from torch import nn
from transformers import PreTrainedModel

from speculant_verifier.offload.experts import ExpertPool
from speculant_verifier.offload.files import WeightReader, stored_tensors
from speculant_verifier.offload.layers import LayerStream
from speculant_verifier.offload.plan import Plan

OFFLOAD = "_speculant_offload"
"""Attribute of a loaded model that holds its :class:`Offload`."""


@dataclass(frozen=True, slots=True)
class OffloadStatistics:
    """What was read since the model was loaded."""

    stall_s: float = 0.0
    """Seconds that passes have waited for weights."""
    num_bytes: int = 0
    """Read."""
    num_wanted: int = 0
    """Experts that passes wanted; 0 where layers are streamed."""
    num_found: int = 0
    """Those of them that were in memory, or on their way."""


class Offload:
    """Reads what a plan does not keep in memory, whenever the model is run."""

    def __init__(self, model: PreTrainedModel, plan: Plan, folder: tempfile.TemporaryDirectory[str]) -> None:
        """Take over a model that was loaded with the plan's device map.

        Args:
            model: its streamed weights are not there yet.
            plan: what is streamed.
            folder: holds weights that had to be written in another form than the checkpoint's; removed at the end.
        """
        self.plan, self._folder = plan, folder
        stored = stored_tensors(_index_of(model))
        remove_hook_from_submodules(model)
        for parameter in model.parameters():
            if not parameter.is_meta:  # else they are pages of the file, which the system takes away when it likes
                parameter.data = parameter.data.clone()
        self._reader = WeightReader()
        modules = [(name, model.get_submodule(name)) for name in plan.streamed]
        self._stream: LayerStream | ExpertPool
        if plan.unit == "layer":
            layers = [
                (
                    layer,
                    [
                        (
                            layer.get_submodule(inner.rpartition(".")[0]),
                            inner.rpartition(".")[2],
                            stored[f"{name}.{inner}"],
                        )
                        for inner, _ in layer.named_parameters()
                    ],
                )
                for name, layer in modules
            ]
            self._stream = LayerStream(layers, plan.num_slots, model.dtype, self._reader)
        else:
            experts = [
                (module, {inner: stored[f"{name}.{inner}"] for inner, _ in module.named_parameters()})
                for name, module in modules
            ]
            self._stream = ExpertPool(experts, plan.num_slots, model.dtype, self._reader)

    @property
    def statistics(self) -> OffloadStatistics:
        """What was read."""
        stream = self._stream
        counts = (stream.num_wanted, stream.num_found) if isinstance(stream, ExpertPool) else ()
        return OffloadStatistics(stream.stall_s, self._reader.num_bytes, *counts)

    def close(self) -> None:
        """Stop reading; the model can't be run any more."""
        self._reader.close()
        self._folder.cleanup()


def _index_of(model: nn.Module) -> dict[str, dict[str, str]]:
    """Return where accelerate would read the streamed weights from."""
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in (hook, *getattr(hook, "hooks", ())):
            weights = getattr(each, "weights_map", None)
            if weights is not None:
                index: dict[str, dict[str, str]] = weights.dataset.index
                return index
    raise AssertionError("nothing is streamed")
