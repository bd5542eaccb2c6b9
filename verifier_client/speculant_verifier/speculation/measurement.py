"""Measures the cost of forward passes, within a time budget, and stores it in the user's cache folder.

Each cache file has the costs for one combination of model, machine and configuration. If a cache file is damaged, the
costs are measured again. If a model streams weights, passes may take seconds, so only two or three are measured. The
costs of other passes are predicted from the bytes that they read and from the time that their computation takes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from loguru import logger
from pydantic import TypeAdapter

from speculant_graph.errors import SpeculantError
from speculant_graph.files import replacing
from speculant_graph.machine import describe_machine
from speculant_graph.types import Draft
from speculant_verifier.cache import SlotCache
from speculant_verifier.model import TargetModel
from speculant_verifier.speculation.costs import TOKENS, CostPoint, CostTable

BATCHES = (1, 4, 8)
"""Batch sizes measured by default."""
CONTEXT = 200
"""Number of tokens in the cache of every row during the measurement, unless filling the caches takes too long."""
BUDGET_S = 6.0
"""Duration of a measurement, in seconds."""

_MOST_REPEATS = 9
_SHARE_OF_SETUP = 0.4
"""Filling caches and running every pass once may take this share of the time budget. Passes that would exceed the share
are not measured."""
_LONGEST_PASS = 0.005
"""Share of the time budget that a pass over one token may take. If a pass over one token takes longer, the caches stay
empty during the measurement, because filling them takes as long as dozens of passes."""
_FEWEST_WIDTHS = 2
"""Minimum number of widths that must be measured for a batch size. A batch size with fewer widths is omitted, because a
single width does not show the cost per token."""
_STREAMED_WIDTH = 17
"""Number of tokens of the second pass if layers are streamed."""
_QUICK_SHARE = 0.1
"""If the very first pass takes less than this share of the time budget, it runs again: the first one includes one-time
initialisation."""
_SILENCE_S = 2.0
"""Minimum number of seconds between two progress lines in the log."""
_VERSION = 6
"""Version of the measurement and its file; files of other versions are ignored."""
_FOLDER_MODE = 0o700
_FILE = TypeAdapter(CostTable)

_Point = tuple[int, int]


def batches_up_to(largest: int) -> tuple[int, ...]:
    """Return the batch sizes to measure for engines of up to ``largest`` sequences, the most frequent first."""
    return tuple(dict.fromkeys((1, largest, *(batch for batch in BATCHES if batch < largest))))


def load_or_measure(
    target: TargetModel, batches: Iterable[int] = BATCHES, folder: Path | None = None, *, most_nodes: int = 8
) -> CostTable:
    """Return the costs of passes on this machine: read from the cache folder, or measured now and stored there.

    If the folder can't be written, the next start measures again.

    Args:
        target: the model.
        batches: batch sizes, in rows; see :func:`measure_costs`.
        folder: folder to use instead of :func:`cache_folder`.
        most_nodes: maximum number of nodes of a draft; the pass that verifies such a draft is the widest, and is
            measured early.
    """
    batches = tuple(dict.fromkeys(batches))
    conditions = [sorted(batches), TOKENS, most_nodes, CONTEXT, *_conditions(target)]
    digest = hashlib.sha256(json.dumps(conditions).encode()).hexdigest()
    path = (folder or cache_folder()) / f"{digest[:32]}.json"
    try:
        table = _FILE.validate_json(path.read_bytes())
        if table.fewest_widths < _FEWEST_WIDTHS:
            raise ValueError("no price without a second width")
        return table
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("{} has no measured costs ({}), measuring again", path, type(error).__name__)
    time = f"for about {BUDGET_S:.0f} s" if target.offload is None else "in a few passes that read weights"
    logger.info("measuring the cost of passes of '{}' on this machine, once, {}", target.name, time)
    tokens = {most_nodes + 1, *(width for width in TOKENS if width <= most_nodes)}
    table = measure_costs(target, batches, tokens, urgent=(1, 2, most_nodes + 1))
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        with replacing(path, lambda written: _FILE.validate_json(written.read_bytes())) as temporary:
            temporary.write_bytes(_FILE.dump_json(table) + b"\n")
    except (OSError, SpeculantError) as error:
        logger.warning("the measured costs can't be stored and will be measured again: {}", error)
    return table


def cache_folder() -> Path:
    """Return the folder of measured costs, in ``$XDG_CACHE_HOME`` or otherwise in ``~/.cache``."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"  # the specification ignores relative paths
    return base / "speculant-graph" / "verify-costs"


def _conditions(target: TargetModel) -> list[object]:
    """Return everything on which a model's costs depend: machine, libraries, weights, dtype, kernels."""
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
        target.layout.rounds,
        None if target.offload is None else repr(target.offload.plan.placement),
    ]


def measure_costs(
    target: TargetModel,
    batches: Iterable[int] = BATCHES,
    tokens: Iterable[int] = TOKENS,
    context: int | None = None,
    budget_s: float = BUDGET_S,
    urgent: Iterable[int] = (1, 2),
) -> CostTable:
    """Measure the durations of the model's forward passes.

    Every pass runs once and then repeatedly, interleaved with all others, so that noise affects all passes alike. The
    shortest time counts. If the time budget is short, the last batch sizes and the longest rows are omitted, and all
    other passes run fewer times. The measured passes use random tokens, which activate about as many experts of a
    mixture as real text does.

    Args:
        target: the model.
        batches: batch sizes, in rows, the most important first.
        tokens: numbers of tokens per row; 1 is always measured.
        context: number of tokens in the cache of every row; None: :data:`CONTEXT`, or 0 for a slow model.
        budget_s: time budget, in seconds. The first two passes always run; a later pass starts only if it can end in
            time. For a model with streamed weights two or three passes run, with empty caches. The first pass is over
            one token. With streamed layers, the second pass is over 17 tokens, and a pass over the maximum number of
            tokens follows if it can end in time. With streamed experts, the second pass is over two tokens. The costs
            of wider passes are predicted.
        urgent: numbers of tokens per row that are measured before all others, if they are in ``tokens``.
    """
    rows, first, wanted = [*dict.fromkeys(batches)], {1, *urgent}, {1, *tokens}
    plan, most = None if target.offload is None else target.offload.plan, target.max_length
    if plan is not None:
        context, rows, most = 0, rows[:1], min(most, 1 + plan.most_nodes)
    widths = sorted({min(width, most) for width in wanted})
    run = widths
    if plan is not None:
        # The widest pass would read all experts.
        more = (2,) if plan.unit == "expert" else (_STREAMED_WIDTH, widths[-1])
        run = sorted(first := {min(width, widths[-1]) for width in (1, *more)})
    capacity = max(0, most - widths[-1] - 1)
    measurement = _Measurement(target, context, capacity, run[-1], budget_s)
    for point in _order(rows, run, first):
        if measurement.may_run(point, is_urgent=point[0] == rows[0] and point[1] in first):
            measurement.run(point)
    if plan is None:
        measurement.repeat()
    return measurement.table([(rows[0], width) for width in widths])


def _order(rows: list[int], widths: list[int], urgent: set[int]) -> Iterator[_Point]:
    """Yield all passes, the most important first.

    All widths of the first two batch sizes precede further batch sizes. Linear interpolation between two batch sizes
    errs less than a typical curve between two widths.
    """
    first = [width for width in widths if width in urgent] or widths[:1]
    for some in (rows[:2], rows[2:]):
        yield from ((batch, width) for batch in some for width in first)
        yield from ((batch, width) for batch in some for width in widths if width not in first)


class _Measurement:
    """Measures passes until the time budget is spent."""

    def __init__(self, target: TargetModel, context: int | None, capacity: int, widest: int, budget_s: float) -> None:
        self._started_s = self._told_s = time.perf_counter()
        self._target, self._budget_s = target, budget_s
        self._best_s: dict[_Point, float] = {}
        self._computed_s: dict[_Point, float] = {}  # without the time for which passes waited for weights
        self._first_byte = 0 if target.offload is None else target.offload.num_bytes
        self._num_passes, self._passes_s = 0, 0.0
        self._probe = _Probe(target, 0, widest)
        self._context = min(CONTEXT, capacity) if context is None else min(context, capacity)
        if context is None and target.offload is None:  # the very first pass includes one-time initialisation
            self._probe.open(1)
            longest_s = _LONGEST_PASS * budget_s
            if self._probe.pass_s(1, 1) > longest_s and self._probe.pass_s(1, 1) > longest_s:
                self._context = 0
        self._probe = _Probe(target, self._context, widest)
        self._opening_s = 0.0  # time to fill a row's cache

    @property
    def _spent_s(self) -> float:
        return time.perf_counter() - self._started_s

    def may_run(self, point: _Point, *, is_urgent: bool) -> bool:
        """Return whether a pass is one of the first two, or would end in time by the measured cost per token.

        Urgent passes may use the whole time budget.
        """
        if len(self._best_s) < _FEWEST_WIDTHS:
            return True
        batch, width = point
        if self._target.offload is not None:
            return self._predicted_s(point) <= self._budget_s - self._spent_s
        known = [(rows * tokens, seconds) for (rows, tokens), seconds in self._best_s.items()]
        size, seconds = max((each for each in known if each[0] <= batch * width), default=min(known))
        left_s = (1.0 if is_urgent else _SHARE_OF_SETUP) * self._budget_s - self._spent_s
        if not self._probe.is_open(batch):
            left_s -= self._opening_s * batch
        return seconds * max(1.0, batch * width / size) <= left_s

    def run(self, point: _Point) -> None:
        """Run a pass for the first time."""
        batch, _ = point
        if not self._probe.is_open(batch):
            started_s = self._spent_s
            self._probe.open(batch)
            self._opening_s = (self._spent_s - started_s) / batch
        for _ in range(self._target.num_unsteady):
            self._probe.pass_s(*point)
        self._note(point)
        if len(self._best_s) == 1 and self._best_s[point] < _QUICK_SHARE * self._budget_s:
            self._note(point)

    def repeat(self) -> None:
        """Repeat all passes until the time budget is spent."""
        order = list(self._best_s)
        for repeat in range(_MOST_REPEATS):
            for point in order if repeat % 2 else reversed(order):
                if self._spent_s + self._best_s[point] > self._budget_s:
                    return
                self._note(point)

    def _note(self, point: _Point) -> None:
        stall_s = self._target.stall_s
        seconds = self._probe.pass_s(*point)
        if seconds <= self._best_s.get(point, seconds):
            self._best_s[point] = seconds
            self._computed_s[point] = seconds - (self._target.stall_s - stall_s)
        self._num_passes += 1
        self._passes_s += seconds
        if time.perf_counter() - self._told_s > _SILENCE_S:
            self._told_s = time.perf_counter()
            logger.info("measuring the cost of passes: {} passes in {:.0f} s", self._num_passes, self._spent_s)

    def _predicted_s(self, point: _Point) -> float:
        """Predict the time of a pass over more tokens than any that ran; it is never below a measured time.

        With streamed experts, the time is that for reading. With streamed layers, every pass reads the same, and the
        time for computation grows linearly with the number of tokens.
        """
        offload = self._target.offload
        assert offload is not None
        least_s = max(self._best_s.values())
        if offload.plan.unit == "expert":
            rate = (offload.num_bytes - self._first_byte) / self._passes_s
            return max(least_s, offload.plan.bytes_of(point[0] * point[1]) / rate if rate else 0.0)
        (_, narrow), (_, wide) = min(self._computed_s), max(self._computed_s)
        narrow_s, wide_s = self._computed_s[min(self._computed_s)], self._computed_s[max(self._computed_s)]
        slope = max(0.0, wide_s - narrow_s) / max(1, wide - narrow)
        return max(least_s, wide_s + slope * (point[1] - wide))

    def _predicted(self, wanted: Iterable[_Point]) -> Iterator[CostPoint]:
        if self._target.offload is None:
            return
        for batch, width in wanted:
            if (batch, width) > max(self._best_s):
                yield CostPoint(batch, width, 1e3 * self._predicted_s((batch, width)), is_measured=False)

    def table(self, wanted: Iterable[_Point]) -> CostTable:
        """Return the measured passes and, if weights are streamed, predictions of the wider passes in ``wanted``."""
        num_widths = [sum(rows == batch for rows, _ in self._best_s) for batch, _ in self._best_s]
        most = max(num_widths)
        points = tuple(
            CostPoint(*point, 1e3 * seconds)
            for (point, seconds), widths in zip(self._best_s.items(), num_widths, strict=True)
            if widths >= min(most, _FEWEST_WIDTHS)
        )
        points = tuple(sorted((*points, *self._predicted(wanted)), key=lambda each: (each.batch, each.tokens)))
        return CostTable(points, self._context, self._target.typical_curve)


class _Probe:
    """Runs passes over caches with a context in every row, without changing the caches."""

    def __init__(self, target: TargetModel, context: int, widest: int) -> None:
        self._target, self._context, self._widest = target, context, max(context, widest)
        self._caches: dict[int, SlotCache] = {}
        self._generator = random.Random(0)

    def is_open(self, batch: int) -> bool:
        """Return whether there is a cache of ``batch`` rows."""
        return batch in self._caches

    def open(self, batch: int) -> None:
        """Create a cache of ``batch`` rows, and fill it with the context."""
        if self._target.offload is not None:
            self._caches.clear()
        self._caches[batch] = cache = self._target.new_cache(batch, widest_pass=self._widest)
        if self._context:
            self._target.prefill([self._random(self._context) for _ in range(batch)], cache, range(batch))

    def pass_s(self, batch: int, tokens: int) -> float:
        """Run one pass over chains without committing it; return its duration in seconds."""
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
