"""Computes figures about sidecars from the measured passes of several engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from speculant_graph.bench.fleet_engine import EnginePasses

BIN_S = 0.5
"""Seconds of each interval over which tokens per pass are averaged, to detect a recovery."""
_BACK = 0.95
_SERVED = 0.9
"""Minimum share of passes that send a draft request; below it, engines do not count as served."""


def draft_figures(engines: Sequence[EnginePasses], rows: int, bar_s: float) -> dict[str, Any]:
    """Return figures about the engines' drafting times, tokens per pass and unanswered passes.

    Args:
        engines: the passes of each engine, at least one.
        rows: number of rows in each pass.
        bar_s: limit of the drafting time per pass, in seconds.

    Returns:
        The figures. The drafting times cover only passes with a request to a sidecar, or all passes if none has one;
        ``asked_share`` is the share of passes with a request. ``failed_share`` is the share of passes without an
        answer in time.
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
    """Return the largest number of served engines per sidecar whose figure ``key`` is within the limit, or 0."""
    served = (each for each in results if each[key] <= bar_ms and each["asked_share"] >= _SERVED)
    return max((each["engines"] / each["sidecars"] for each in served), default=0)


def event_figures(engines: Sequence[EnginePasses], event_s: float, window_s: float) -> dict[str, Any]:
    """Return how an event, such as the kill of a sidecar, affects the passes after it.

    Args:
        engines: the passes of each engine, including some before the event.
        event_s: time of the event.
        window_s: seconds before and after the event to consider.

    Returns:
        ``share_without_drafts``: share of unanswered passes among all passes after the event. ``drafts_back_s``:
        seconds from the event to the end of the last unanswered pass that it caused. An unanswered pass that ends half
        a second or more after the engine's previous unanswered pass has another cause and does not count.
        ``tokens_per_pass_before``: mean number of tokens per pass before the event, for all rows together.
        ``tokens_back_s``: seconds from the event to the end of the first half second whose passes reach 95 % of
        ``tokens_per_pass_before``. ``tokens_back_s`` is None if no half second reaches this share.
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
    """Return the seconds from an event to the end of the last failed pass that the event caused in an engine.

    These failed passes form a series: the first ends within half a second of the event, and each further pass within
    half a second of the previous one.
    """
    until_s = 0.0
    for ended_s, failed in zip(engine.ended_s, engine.failed, strict=True):
        if failed and 0.0 <= ended_s - event_s < until_s + BIN_S:
            until_s = ended_s - event_s
    return until_s
