"""Counters, and their text for Prometheus."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from speculant_drafter.metrics import STEP_BOUNDS_S, ServerCounts, ServerState, SessionEnd, render_metrics
from speculant_graph.version import VERSION

STATE = ServerState([("docs", 3, 17), ('a "b"\\\n', 1, 0)], session_bytes=1_234, learned_tokens=99)


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@given(st.lists(st.tuples(st.floats(0.0, 0.1) | st.sampled_from(STEP_BOUNDS_S), st.integers(1, 8)), max_size=30))
def test_the_histogram_counts_what_is_at_most_a_bound(steps: list[tuple[float, int]]) -> None:
    counts = ServerCounts()
    for seconds, num_sequences in steps:
        counts.observe_step(seconds, num_sequences)
    found = samples(render_metrics(counts, ServerState()))
    for bound in STEP_BOUNDS_S:
        expected = sum(seconds <= bound for seconds, _ in steps)
        assert found["speculant_drafter_step_seconds_bucket", (("le", str(bound)),)] == expected
    assert found["speculant_drafter_step_seconds_bucket", (("le", "+Inf"),)] == len(steps)
    assert found["speculant_drafter_step_seconds_count", ()] == found["speculant_drafter_steps_total", ()] == len(steps)
    assert found["speculant_drafter_step_seconds_sum", ()] == pytest.approx(sum(seconds for seconds, _ in steps))
    assert found["speculant_drafter_sequences_total", ()] == sum(number for _, number in steps)


def test_every_counter_and_gauge_is_shown() -> None:
    counts = ServerCounts()
    counts.drafted_nodes, counts.empty_drafts, counts.opened_sessions = 5, 6, 7
    for code in ("INTERNAL", "INVALID_ARGUMENT", "INTERNAL"):
        counts.failed_steps[code] += 1
    for reason in (*get_args(SessionEnd), "idle"):
        counts.ended_sessions[reason] += 1
    found = samples(render_metrics(counts, STATE))
    prefix = "speculant_drafter_"
    assert found[prefix + "build_info", (("version", VERSION),)] == 1
    assert found[prefix + "drafted_nodes_total", ()] == 5
    assert found[prefix + "empty_drafts_total", ()] == 6
    assert found[prefix + "opened_sessions_total", ()] == 7
    assert found[prefix + "failed_steps_total", (("code", "INTERNAL"),)] == 2
    assert found[prefix + "failed_steps_total", (("code", "INVALID_ARGUMENT"),)] == 1
    for reason in get_args(SessionEnd):
        assert found[prefix + "ended_sessions_total", (("reason", reason),)] == (2 if reason == "idle" else 1)
    assert found[prefix + "session_bytes", ()] == 1_234
    assert found[prefix + "learned_tokens", ()] == 99
    for name, generation, open_sessions in STATE.graphs:
        assert found[prefix + "open_sessions", (("graph", name),)] == open_sessions
        assert found[prefix + "graph_generation", (("graph", name),)] == generation
    assert found["process_resident_memory_bytes", ()] > 1_000_000


def test_every_metric_has_a_help_text_and_no_label_is_a_clients() -> None:
    counts = ServerCounts()
    counts.failed_steps["INTERNAL"] += 1
    for family in text_string_to_metric_families(render_metrics(counts, STATE).decode()):
        assert family.documentation
        for sample in family.samples:
            assert sample.labels.keys() <= {"code", "reason", "graph", "le", "version"}
