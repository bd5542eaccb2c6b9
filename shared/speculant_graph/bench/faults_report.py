"""What ``speculant bench faults`` holds its figures against, and how it shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speculant_graph.bench.faults_clients import CLIENTS

MOST_OPEN_US = 100.0
"""99th percentile of a step while the breaker is open, µs."""
MOST_BACK_AFTER_STOP_MS = 300.0
"""From SIGCONT to the first draft."""
MOST_BACK_AFTER_KILL_MS = 500.0
"""From the health check that says SERVING to the first draft."""
MOST_RESIDENT_GROWTH = 1.10
"""Resident memory after the nonsense, as a multiple of that after the warm-up."""
MOST_GOOD_GAP_MS = 1_000.0
"""Longest time that the good client is without a draft."""
EXPECTED_STATUSES = frozenset({
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED",
})  # fmt: skip
"""What a mutated message may be answered with."""

_Figures = Mapping[str, Any]
_Row = tuple[str, str]


def missed(section: str, figures: _Figures) -> list[str]:
    """Return which limits a section's figures miss, in words."""
    return [what for what, is_kept in _LIMITS[section](figures).items() if not is_kept]


def rows_of(section: str, figures: _Figures) -> list[_Row]:
    """Return what is shown of a section, its verdict first."""
    misses = missed(section, figures)
    return [(section, f"missed: {'; '.join(misses)}" if misses else "within its limits"), *_ROWS[section](figures)]


def _stop_limits(figures: _Figures) -> dict[str, bool]:
    each = [figures[name] for name in CLIENTS]
    return {
        f"p99 of steps while open under {MOST_OPEN_US:g} µs": all(one["open_us"]["p99"] < MOST_OPEN_US for one in each),
        f"drafts within {MOST_BACK_AFTER_STOP_MS:g} ms": all(
            max(one["back_ms"]) <= MOST_BACK_AFTER_STOP_MS for one in each
        ),
        "the same drafts afterwards": not any(one["different"] for one in each),
    }


def _kill_limits(figures: _Figures) -> dict[str, bool]:
    each = [figures[name] for name in CLIENTS]
    return {
        "no step raises": not any(one["raised"] for one in each),
        f"drafts within {MOST_BACK_AFTER_KILL_MS:g} ms": all(
            max(one["back_ms"]) <= MOST_BACK_AFTER_KILL_MS for one in each
        ),
        "the drafts of an undisturbed client": not any(one["different"] for one in each),
    }


def _reload_limits(figures: _Figures) -> dict[str, bool]:
    return {
        "no failures": not figures["failures"],
        "answers of one of the graphs": not figures["neither"],
        "answers of the generation they name": not figures["misnamed"] and not figures["moved_sessions"],
    }


def _sessions_limits(figures: _Figures) -> dict[str, bool]:
    return {
        "no failures": not figures["failures"],
        "memory of sessions under its limit": figures["most_bytes"] <= figures["limit_bytes"],
        "the live session is kept": not figures["live_lost"] and figures["live_steps"] > 0,
    }


def _fuzz_limits(figures: _Figures) -> dict[str, bool]:
    return {
        "statuses of the protocol": set(figures["statuses"]) <= EXPECTED_STATUSES,
        "no text of Python's": not figures["leaks"],
        "no errors in the log": not figures["logged_errors"],
        "the good client drafts on": figures["good_answered"] > 0
        and not figures["good_wrong"]
        and figures["good_longest_gap_ms"] <= MOST_GOOD_GAP_MS,
        "memory as after the warm-up": figures["resident_after"] <= MOST_RESIDENT_GROWTH * figures["resident_warm"],
        "descriptors given back": figures["descriptors_after"] <= figures["descriptors_warm"],
        "alive and serving": figures["serving"],
    }


_LIMITS = {
    "stop": _stop_limits, "kill": _kill_limits, "reload": _reload_limits,
    "sessions": _sessions_limits, "fuzz": _fuzz_limits,
}  # fmt: skip


def _stop_rows(figures: _Figures) -> list[_Row]:
    rows: list[_Row] = []
    for name in CLIENTS:
        one = figures[name]
        rows += [
            (f"  {name}: steps until the breaker opens; longest",
             f"{one['steps_before_open']:.1f}; {one['before_open_ms']['max']:.1f} ms"),
            ("    a step while open: median / 99th percentile / longest", f"{_three(one['open_us'])} µs"),
            ("    from SIGCONT to drafts: median; longest", _back(one["back_ms"])),
            ("    drafts that differ", f"{one['different']}"),
        ]  # fmt: skip
    return rows


def _kill_rows(figures: _Figures) -> list[_Row]:
    rows: list[_Row] = []
    for name in CLIENTS:
        one = figures[name]
        rows += [
            (f"  {name}: steps meanwhile; raised; longest",
             f"{one['steps_meanwhile']:,}; {one['raised']}; {one['meanwhile_ms']['max']:.1f} ms"),
            ("    from SERVING to drafts: median; longest", _back(one["back_ms"])),
            ("    sessions reopened; drafts compared; that differ",
             f"{one['reopened']}; {one['compared']}; {one['different']}"),
        ]  # fmt: skip
    return rows


def _reload_rows(figures: _Figures) -> list[_Row]:
    return [
        ("  requests; failures", f"{figures['requests']:,}; {figures['failures']}"),
        ("  reloads; a second", f"{figures['reloads']}; {figures['reloads_per_s']:.1f}"),
        ("  answers of neither graph; not of the generation named", f"{figures['neither']}; {figures['misnamed']}"),
        ("  a request: median / 99th percentile / longest", f"{_three(figures['ms'])} ms"),
        ("    without reloads", f"{_three(figures['quiet_ms'])} ms"),
    ]


def _sessions_rows(figures: _Figures) -> list[_Row]:
    return [
        ("  sessions opened; refused for a moment; failures",
         f"{figures['sessions']:,}; {figures['refused']:,}; {figures['failures']}"),
        ("  opened and drafted for, a second", f"{figures['opens_per_s']:,.0f}"),
        ("  memory of sessions: most of all samples; limit",
         f"{_megabytes(figures['most_bytes'])} of {figures['samples']:,}; {_megabytes(figures['limit_bytes'])}"),
        ("  most open; evicted", f"{figures['most_open']:,}; {figures['evicted']:,}"),
        ("  resident memory before; after",
         f"{_megabytes(figures['resident_before'])}; {_megabytes(figures['resident_after'])}"),
        ("  steps of the live session; without a draft in time; lost",
         f"{figures['live_steps']:,}; {figures['live_late']}; {figures['live_lost']}"),
    ]  # fmt: skip


def _fuzz_rows(figures: _Figures) -> list[_Row]:
    return [
        (f"  mutated messages, seed {figures['seed']}", f"{figures['messages']:,}"),
        *((f"    {code}", f"{number:,}") for code, number in figures["statuses"].items()),
        ("    with text of Python's", f"{figures['leaks']}"),
        ("  malformed connections", f"{figures['connections']:,}"),
        (f"  slow connections for {figures['slow_s']:g} s; sent away",
         f"{figures['slow']}; {figures['slow_sent_away']}"),
        ("  steps of the good client; answered in time; wrong",
         f"{figures['good_steps']:,}; {figures['good_answered']:,}; {figures['good_wrong']}"),
        ("    longest time without a draft", f"{figures['good_longest_gap_ms']:,.0f} ms"),
        ("  resident memory after the warm-up; at the end",
         f"{_megabytes(figures['resident_warm'])}; {_megabytes(figures['resident_after'])}"),
        ("  descriptors after the warm-up; at the end",
         f"{figures['descriptors_warm']}; {figures['descriptors_after']}"),
        ("  errors in the log; serving at the end",
         f"{figures['logged_errors']}; {'yes' if figures['serving'] else 'no'}"),
    ]  # fmt: skip


_ROWS = {
    "stop": _stop_rows, "kill": _kill_rows, "reload": _reload_rows, "sessions": _sessions_rows, "fuzz": _fuzz_rows,
}  # fmt: skip


def _three(quantiles: Mapping[str, float]) -> str:
    return " / ".join(f"{quantiles[name]:,.1f}" for name in ("p50", "p99", "max"))


def _back(times_ms: list[float]) -> str:
    return f"{sorted(times_ms)[len(times_ms) // 2]:,.0f}; {max(times_ms):,.0f} ms"


def _megabytes(number: float) -> str:
    return f"{number / 1e6:,.0f} MB"
