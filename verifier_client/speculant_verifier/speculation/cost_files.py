"""Keeps measured costs in the user's cache folder: one file for each model, machine and way of running it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from loguru import logger

from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.graph.export import replacing
from speculant_graph.machine import describe_machine
from speculant_verifier.model import TargetModel
from speculant_verifier.speculation.cost_measure import BATCHES, BUDGET_S, CONTEXT, TOKENS, Progress, measure_costs
from speculant_verifier.speculation.costs import CostTable

_VERSION = 1
"""Of what is measured and how it is written; files of other versions are not found."""
_FOLDER_MODE = 0o700


def load_or_measure(
    target: TargetModel,
    batches: Sequence[int] = BATCHES,
    tokens: Sequence[int] = TOKENS,
    context: int = CONTEXT,
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> CostTable:
    """Return what passes cost here, from the cache folder or measured now and kept there.

    A damaged file is measured again, with a warning. A folder that can't be written costs nothing but the time of the
    next measurement.

    Args:
        target: the model.
        batches: see :func:`~speculant_verifier.speculation.cost_measure.measure_costs`, as for the next four.
        tokens: tokens of each row.
        context: tokens in the cache.
        budget_s: longest time of a measurement, in seconds.
        progress: called with hundredths, if it is measured.
        folder: instead of :func:`cache_folder`.
    """
    conditions = describe_conditions(target) | {
        "batches": sorted(set(batches)),
        "tokens": sorted(set(tokens)),
        "context": context,
    }
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
    path = (folder or cache_folder()) / f"{digest[:32]}.json"
    known = _read(path)
    if known is not None:
        return known
    duration = f"for up to {budget_s:.0f} s" if target.offload is None else "by a dozen passes"
    logger.info("measuring what passes of '{}' cost on this machine, once, {}", target.name, duration)
    table = measure_costs(target, batches, tokens, context, budget_s, progress)
    _write(path, {**table.to_json(), "conditions": conditions})
    return table


def cache_folder() -> Path:
    """Return the folder of measured costs: below ``$XDG_CACHE_HOME``, else below ``~/.cache``."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"  # a relative one is to be ignored
    return base / "speculant-graph" / "verify-costs"


def describe_conditions(target: TargetModel) -> dict[str, Any]:
    """Return all that makes the costs of a model what they are: machine, libraries, weights, number type, kernels."""
    machine = describe_machine()
    config = target.model.config
    content = {**json.loads(config.to_json_string(use_diff=False)), "_name_or_path": ""}
    device = target.device
    return {
        "version": _VERSION,
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "threads": torch.get_num_threads(),
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "model": os.path.realpath(target.name) if os.path.isdir(target.name) else target.name,
        "config": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "attention": config._attn_implementation,
        "offload": None if target.offload is None else repr(target.offload.plan.placement),
    }


def _read(path: Path) -> CostTable | None:
    try:
        return CostTable.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError, ConfigError) as error:
        logger.warning("{} holds no measured costs ({}), measuring again", path, type(error).__name__)
        return None


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except (OSError, SpeculantError) as error:
        logger.warning("the measured costs can't be kept, measuring again next time: {}", error)
