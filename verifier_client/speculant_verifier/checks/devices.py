"""What ``speculant doctor`` says of torch and of the devices that it sees."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from speculant_graph.cli.checks.finding import Finding


def check_torch() -> Iterator[Finding]:
    """Say which torch this is and which GPUs it sees."""
    yield Finding("torch", "ok", f"{torch.__version__}, threads: {torch.get_num_threads()}")
    if not torch.cuda.is_available():
        yield Finding("gpu", "ok", "none: the model runs on the processor")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        yield Finding("gpu", "ok", f"cuda:{index} {name}, {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB")
