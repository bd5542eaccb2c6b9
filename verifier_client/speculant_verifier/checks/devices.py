"""What ``speculant doctor`` checks of the devices that torch sees."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from speculant_graph.cli.checks import CheckResult


def check_devices() -> Iterator[CheckResult]:
    """Say which GPUs torch sees."""
    if not torch.cuda.is_available():
        yield CheckResult("gpu", "ok", f"none: the model runs on the processor (torch {torch.__version__})")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        yield CheckResult("gpu", "ok", f"cuda:{index} {name}, {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB")
