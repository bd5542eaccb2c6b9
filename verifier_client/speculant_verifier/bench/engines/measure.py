"""Measures one engine: all its ways of drafting are running, and take turns with a batch of prompts each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant_graph.errors import ConfigError, SpeculantError
from speculant_verifier.bench.engines.contenders import Contender, Decoded
from speculant_verifier.bench.engines.methods import NONE, Files, Installation, methods_of

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress
    from speculant_verifier.bench.engines.command import BenchEnginesSettings


@dataclass
class _Round:
    """What one way of drafting made of all prompts."""

    ids: list[tuple[int, ...]] = field(default_factory=list)
    turns_s: list[float] = field(default_factory=list)
    passes: int = 0

    def add(self, decoded: Decoded) -> None:
        self.ids += decoded.ids
        self.turns_s.append(decoded.seconds)
        self.passes += decoded.passes

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / sum(self.turns_s)


def measure_engine(
    installation: Installation,
    files: Files,
    prompts: Sequence[Sequence[int]],
    settings: BenchEnginesSettings,
    progress: BenchProgress,
) -> list[dict[str, Any]]:
    """Return one result for each batch size, way of drafting and round."""
    return [
        result
        for batch in installation.batches
        for result in _measure_batch(installation, files, prompts, batch, settings, progress)
    ]


def _measure_batch(
    installation: Installation,
    files: Files,
    prompts: Sequence[Sequence[int]],
    batch: int,
    settings: BenchEnginesSettings,
    progress: BenchProgress,
) -> list[dict[str, Any]]:
    max_length = max(map(len, prompts)) + settings.max_tokens + settings.most_drafted + 1
    methods = methods_of(installation, files, batch, settings.most_drafted, 64 * -(-max_length // 64))
    wanted = {NONE, *(name.strip() for name in settings.methods.split(";"))} - {""}
    if unknown := wanted - methods.keys():
        names = "; ".join(methods)
        raise ConfigError(f"{installation.engine} has no {', '.join(sorted(unknown))}; --methods takes: {names}")
    running: dict[str, Contender] = {}
    head = {"engine": installation.engine, "batch": batch}
    results: list[dict[str, Any]] = []
    try:
        for method, start in methods.items():
            if settings.methods and method not in wanted:
                continue
            progress.begin(f"{installation.engine}: {method} starts")
            try:
                running[method] = start()
            except SpeculantError as error:
                results.append({**head, "method": method, "skipped": str(error)})
        for contender in running.values():  # first calls compile and fill caches
            contender.decode(prompts[:1], 4)
        plain: _Round | None = None
        for number in range(1, settings.rounds + 1):
            label = f"{installation.engine}, round {number}"
            rounds = _round(running, prompts, batch, settings.max_tokens, progress, label)
            plain = plain or rounds[NONE]
            for method, of in rounds.items():
                results.append({**head, "method": method, "round": number, **_figures(of, plain, rounds[NONE])})
        for result in results:
            if result["method"] in running:
                result.update(_times(running[result["method"]].draft_times()))
    finally:
        for contender in running.values():
            contender.close()
    return results


def _round(
    running: dict[str, Contender],
    prompts: Sequence[Sequence[int]],
    batch: int,
    max_tokens: int,
    progress: BenchProgress,
    label: str,
) -> dict[str, _Round]:
    rounds = {method: _Round() for method in running}
    names = list(running)
    turns = range(0, len(prompts), batch)
    tell = progress.teller(label)
    for turn, start in enumerate(turns):
        for place in range(len(names)):  # everyone comes first, second, ... equally often
            name = names[(turn + place) % len(names)]
            rounds[name].add(running[name].decode(prompts[start : start + batch], max_tokens))
            tell(turn * len(names) + place + 1, len(turns) * len(names))
    return rounds


def _figures(of: _Round, plain: _Round, beside: _Round) -> dict[str, Any]:
    return {
        "identical": of.ids == plain.ids,
        "tokens": of.num_tokens,
        "tokens_per_pass": round(of.num_tokens / max(of.passes, 1), 3),
        "tokens_per_s": round(of.tokens_per_s, 1),
        "speedup": round(of.tokens_per_s / beside.tokens_per_s, 3),
        "speedup_median_turn": round(float(np.median(np.divide(beside.turns_s, of.turns_s))), 3),
    }


def _times(seconds: Sequence[float]) -> dict[str, Any]:
    if not seconds:
        return {"propose_us_p50": None, "propose_us_p99": None}
    low, high = np.percentile(seconds, (50, 99)) * 1e6
    return {"propose_us_p50": round(float(low), 1), "propose_us_p99": round(float(high), 1)}
