"""What the passes of several engines say of their sidecars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from speculant_graph.bench.fleet_engine import EnginePasses

BIN_S = 0.5
"""Tokens a pass are averaged over so long before they count as back."""
_BACK = 0.95
_SERVED = 0.9
"""Share of passes that are drafted for, below which engines do without rather than being served."""


def draft_figures(engines: Sequence[EnginePasses], rows: int, bar_s: float) -> dict[str, Any]:
    """Return how long drafting took at the engines, and what it brought.

    Args:
        engines: each has at least one pass.
        rows: of a pass.
        bar_s: how long drafting may take.

    Returns:
        Times are those of passes for which a sidecar was asked: ``asked_share`` of all. ``failed_share`` got no answer
        in time.
    """
    draft_s = np.concatenate([each.draft_s for each in engines])
    asked = np.concatenate([each.asked for each in engines]) > 0
    failed = sum(sum(map(bool, each.failed)) for each in engines)
    num_passes = draft_s.size
    draft_s = draft_s[asked] if asked.any() else draft_s
    return {
        "passes": num_passes,
        "asked_share": round(float(asked.mean()), 4),
        "draft_ms_p50": round(1e3 * float(np.percentile(draft_s, 50)), 4),
        "draft_ms_p99": round(1e3 * float(np.percentile(draft_s, 99)), 4),
        "within_bar": round(float(np.mean(draft_s <= bar_s)), 4),
        "tokens_per_pass": round(sum(sum(each.num_tokens) for each in engines) / num_passes / rows, 4),
        "failed_share": round(failed / num_passes, 5),
    }


def engines_within(results: Sequence[dict[str, Any]], key: str, bar_ms: float) -> float:
    """Return the most engines a sidecar whose figure is not above the bar, and who do draft; 0 if there are none."""
    served = (each for each in results if each[key] <= bar_ms and each["asked_share"] >= _SERVED)
    return max((each["engines"] / each["sidecars"] for each in served), default=0)


def event_figures(engines: Sequence[EnginePasses], event_s: float, window_s: float) -> dict[str, Any]:
    """Return what an event did to the passes after it.

    Args:
        engines: their passes, some of them before it.
        event_s: when it was.
        window_s: how long before it and after it passes are looked at.

    Returns:
        ``share_without_drafts``: of the passes after it, how many lacked an answer. ``drafts_back_s``: seconds to the
        end of the last one of these, without those of an engine that came half a second or more after its former one:
        they are late by themselves. ``tokens_per_pass_before``, of all rows together. ``tokens_back_s``: seconds to
        the end of the first half second in which a pass brought 95 % of that; None: there was none.
    """
    ended_s = np.concatenate([each.ended_s for each in engines]) - event_s
    failed = np.concatenate([each.failed for each in engines]) > 0
    tokens = np.concatenate([each.num_tokens for each in engines])
    before = float(tokens[(ended_s >= -window_s) & (ended_s < 0)].mean())
    is_after = (ended_s >= 0) & (ended_s < window_s)
    back_s = None
    for start_s in np.arange(0.0, window_s, BIN_S):
        brought = tokens[(ended_s >= start_s) & (ended_s < start_s + BIN_S)]
        if brought.size and brought.mean() >= _BACK * before:
            back_s = round(float(start_s) + BIN_S, 3)
            break
    return {
        "passes": int(is_after.sum()),
        "share_without_drafts": round(float(failed[is_after].mean()), 5) if is_after.any() else None,
        "drafts_back_s": round(max(_lacking_s(each, event_s) for each in engines), 4),
        "tokens_per_pass_before": round(before, 4),
        "tokens_back_s": back_s,
    }


def _lacking_s(engine: EnginePasses, event_s: float) -> float:
    """Return how long after an event an engine lacked answers."""
    until_s = 0.0
    for ended_s, failed in zip(engine.ended_s, engine.failed, strict=True):
        if failed and 0.0 <= ended_s - event_s < until_s + BIN_S:
            until_s = ended_s - event_s
    return until_s
