"""How long one forward pass takes, by the rows of the batch and the tokens of each row.

Passes are measured within a budget of time, and what came of it is kept in the user's cache folder: one file for each
model, machine and way of running it. A damaged one is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from loguru import logger
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from speculant_graph.draft.cost import MAX_POINT, CostCurve
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.workspace import replacing
from speculant_graph.machine import describe_machine
from speculant_graph.types import Draft
from speculant_verifier.cache import SlotCache
from speculant_verifier.model import TargetModel

_Curve = tuple[int, NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class CostPoint:
    """One measured pass."""

    batch: Annotated[int, Field(ge=1)]
    """Rows."""
    tokens: Annotated[int, Field(ge=1, le=MAX_POINT)]
    """Tokens of each row: the last known one and the drafted nodes."""
    ms: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Milliseconds of the pass."""


@dataclass(frozen=True)
class CostTable:
    """Measured passes, and estimates of all others.

    Along the tokens of a row the measured points are joined by straight lines, which go on behind the last one; a pass
    never costs less than one of fewer tokens. Between two measured batches it is a straight line again. A batch outside
    of the measured ones costs what the nearest one does for as many tokens altogether.
    """

    points: tuple[CostPoint, ...]
    """At least one, with one token, for every batch; different from each other."""
    context: Annotated[int, Field(ge=0)]
    """Tokens that every row had in the cache."""

    def __post_init__(self) -> None:
        """Check that plain decoding is among the passes of every batch.

        Raises:
            ValueError: it is not.
        """
        if not self.points or any(widths[0] != 1 for _, widths, _ in self._curves):
            raise ValueError("a table of costs needs a pass of one token for every batch")

    @cached_property
    def _curves(self) -> list[_Curve]:
        by_batch: dict[int, dict[int, float]] = defaultdict(dict)
        for point in self.points:
            by_batch[point.batch][point.tokens] = point.ms
        curves = []
        for batch, times in sorted(by_batch.items()):
            widths = sorted(times)
            # Noise may make a longer pass look cheaper than a shorter one.
            rising = np.maximum.accumulate(np.array([times[width] for width in widths]))
            curves.append((batch, np.array(widths, np.float64), rising))
        return curves

    @cached_property
    def _tables(self) -> dict[int, NDArray[np.float64]]:
        return {}

    def ms(self, batch: int, tokens: float) -> float:
        """Estimate the milliseconds of a pass.

        Args:
            batch: rows, at least 1.
            tokens: tokens of each row, at least 1; a mean over steps may lie between two whole numbers.
        """
        batches = [measured for measured, _, _ in self._curves]
        if not batches[0] <= batch <= batches[-1]:
            nearest = 0 if batch < batches[0] else -1
            return _on(self._curves[nearest], tokens * batch / batches[nearest])
        estimates = np.maximum.accumulate([_on(curve, tokens) for curve in self._curves])
        return float(np.interp(batch, batches, estimates))

    def relative(self, batch: int, tokens: float) -> float:
        """Estimate a pass in passes of one token over the same batch."""
        return self.ms(batch, tokens) / self.ms(batch, 1)

    def seconds_of_widths(self, batch: int, width: int) -> NDArray[np.float64]:
        """Return the seconds of passes of 0 to ``width`` tokens, ``[width + 1]``; those of 0 are those of 1."""
        known = self._tables.get(batch)
        if known is None or len(known) <= width:
            known = np.array([self.ms(batch, max(1, tokens)) / 1e3 for tokens in range(max(64, width) + 1)])
            self._tables[batch] = known
        return known[: width + 1]

    def relative_of_widths(self, batch: int, width: int) -> NDArray[np.float64]:
        """Return the same in passes of one token over the same batch."""
        seconds = self.seconds_of_widths(batch, width)
        return np.asarray(seconds / seconds[0])

    def curve(self, batch: int) -> CostCurve:
        """Return the costs of a batch by tokens of a row, as drafters take them."""
        tokens = sorted({point.tokens for point in self.points})
        return CostCurve(tuple(tokens), tuple(self.relative(batch, width) for width in tokens))


def _on(curve: _Curve, tokens: float) -> float:
    _, widths, times = curve
    if tokens > widths[-1] and len(widths) > 1:
        slope = (times[-1] - times[-2]) / (widths[-1] - widths[-2])
        return float(times[-1] + slope * (tokens - widths[-1]))
    return float(np.interp(tokens, widths, times))


BATCHES = (1, 4, 8)
"""Rows that are measured unless others are asked for."""
TOKENS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of a row that are measured unless others are asked for."""
CONTEXT = 200
"""Tokens that every row has in the cache while it is measured."""
BUDGET_S = 6.0
"""Longest time of a measurement."""
STREAMED_TOKENS = (1, 2, 4, 16, 64, 257)
"""Tokens of a row that are measured where weights are read for every pass: each takes seconds, and wide ones pay."""

_MOST_REPEATS = 9
_FEWEST_REPEATS = 2
_SHARE_OF_SETUP = 0.25
"""Of the budget, for filling caches and for first passes; what is not run by then is not measured."""
_VERSION = 2
"""Of what is measured and how it is written; files of other versions are not found."""
_FOLDER_MODE = 0o700
_FILE = TypeAdapter(CostTable)


def batches_up_to(largest: int) -> tuple[int, ...]:
    """Return the batches to measure for engines that decode so many sequences together."""
    return (*(batch for batch in BATCHES if batch < largest), largest)


def load_or_measure(target: TargetModel, batches: Iterable[int] = BATCHES, folder: Path | None = None) -> CostTable:
    """Return what passes cost here, from the cache folder or measured now and kept there.

    A folder that can't be written costs nothing but the time of the next measurement.

    Args:
        target: the model.
        batches: rows, see :func:`measure_costs`.
        folder: instead of :func:`cache_folder`.
    """
    batches = sorted(set(batches))
    conditions = [batches, TOKENS, CONTEXT, *_conditions(target)]
    digest = hashlib.sha256(json.dumps(conditions).encode()).hexdigest()
    path = (folder or cache_folder()) / f"{digest[:32]}.json"
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("{} holds no measured costs ({}), measuring again", path, type(error).__name__)
    duration = f"for up to {BUDGET_S:.0f} s" if target.offload is None else "by a dozen passes"
    logger.info("measuring what passes of '{}' cost on this machine, once, {}", target.name, duration)
    table = measure_costs(target, batches)
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        with replacing(path, lambda written: _FILE.validate_json(written.read_bytes())) as temporary:
            temporary.write_bytes(_FILE.dump_json(table) + b"\n")
    except (OSError, SpeculantError) as error:
        logger.warning("the measured costs can't be kept, measuring again next time: {}", error)
    return table


def cache_folder() -> Path:
    """Return the folder of measured costs: below ``$XDG_CACHE_HOME``, else below ``~/.cache``."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"  # a relative one is to be ignored
    return base / "speculant-graph" / "verify-costs"


def _conditions(target: TargetModel) -> list[object]:
    """Return all that makes the costs of a model what they are: machine, libraries, weights, number type, kernels."""
    machine, config, device = describe_machine(), target.model.config, target.device
    return [
        _VERSION,
        machine["cpu"],
        machine["cores"],
        torch.get_num_threads(),
        torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        torch.__version__,
        os.path.realpath(target.name) if os.path.isdir(target.name) else target.name,
        {**json.loads(config.to_json_string(use_diff=False)), "_name_or_path": ""},
        str(target.model.dtype),
        config._attn_implementation,
        None if target.offload is None else repr(target.offload.plan.placement),
    ]


def measure_costs(
    target: TargetModel,
    batches: Iterable[int] = BATCHES,
    tokens: Iterable[int] = TOKENS,
    context: int = CONTEXT,
    budget_s: float = BUDGET_S,
) -> CostTable:
    """Measure what passes of this model cost here and now.

    Every pass is run once to warm up and then again and again, in turn with all others, so that a noisy moment hits
    all of them; the smallest time counts. Where the budget is short, the largest batches and longest rows are left
    out, and the rest is run fewer times. The tokens are random, which in a mixture of experts wakes as many experts
    as any text.

    Args:
        target: the model.
        batches: rows; the smallest is always measured.
        tokens: tokens of each row; 1 is always measured.
        context: tokens that every row has in the cache.
        budget_s: longest time, in seconds. Two passes over one token are run however long they take; and of a model
            whose weights are read for every pass, all that is measured once.
    """
    rows, widths, repeats = sorted(set(batches)), sorted({1, *tokens}), _MOST_REPEATS
    context = max(0, min(context, target.max_length - widths[-1] - 1))
    if target.offload is not None:  # passes take seconds, most of which no noise of the machine changes
        plan, longest = target.offload.plan, target.max_length - context
        rows, repeats, budget_s = sorted({rows[0], rows[-1]}), 0, float("inf")
        widths = sorted({min(width, 1 + plan.most_nodes, longest) for width in STREAMED_TOKENS})
        context = min(context, max(0, plan.kv_tokens // rows[-1] - widths[-1]))
    started_s, probe = time.perf_counter(), _Probe(target, context, widths[-1])

    def spent_s() -> float:
        return time.perf_counter() - started_s

    best_s: dict[tuple[int, int], float] = {}
    for batch, width in ((batch, width) for batch in rows for width in widths):
        if best_s and spent_s() > _SHARE_OF_SETUP * budget_s:
            break
        if width == widths[0]:
            probe.open(batch)
            if repeats:
                probe.pass_s(batch, 1)  # the first pass of all pays for what is made once
        best_s[batch, width] = probe.pass_s(batch, width)
    order = list(best_s)
    for repeat in range(repeats):
        for point in order if repeat % 2 else reversed(order):
            if repeat >= _FEWEST_REPEATS and spent_s() > budget_s:
                break
            best_s[point] = min(best_s[point], probe.pass_s(*point))
        if spent_s() > budget_s:
            break
    return CostTable(tuple(CostPoint(*point, 1e3 * seconds) for point, seconds in best_s.items()), context)


class _Probe:
    """Caches with a context in every row, and passes over them that leave them as they were."""

    def __init__(self, target: TargetModel, context: int, widest: int) -> None:
        self._target, self._context, self._widest = target, context, max(context, widest)
        self._caches: dict[int, SlotCache] = {}
        self._generator = random.Random(0)

    def open(self, batch: int) -> None:
        """Fill a cache of so many rows."""
        if self._target.offload is not None:
            self._caches.clear()
        self._caches[batch] = cache = self._target.new_cache(batch, widest_pass=self._widest)
        if self._context:
            self._target.prefill([self._random(self._context) for _ in range(batch)], cache, range(batch))

    def pass_s(self, batch: int, tokens: int) -> float:
        """Return the seconds of one pass over chains; nothing of it is committed."""
        nodes = [self._random(tokens) for _ in range(batch)]
        drafts = [Draft(tuple(ids[1:]), tuple(range(tokens - 1))) for ids in nodes]
        self._wait()
        started_s = time.perf_counter()
        self._target.forward([ids[:1] for ids in nodes], self._caches[batch], range(batch), drafts)
        self._wait()
        return time.perf_counter() - started_s

    def _random(self, count: int) -> list[int]:
        return [self._generator.randrange(self._target.vocabulary_size) for _ in range(count)]

    def _wait(self) -> None:
        if self._target.device.type == "cuda":
            torch.cuda.synchronize(self._target.device)
