"""Counters, and their text for Prometheus."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from speculant_drafter.metrics import STEP_BOUNDS_S, ServerCounts, ServerState, render_metrics

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


def test_every_metric_has_a_help_text_and_no_label_is_a_clients() -> None:
    counts = ServerCounts()
    counts.failed_steps["INTERNAL"] += 1
    for family in text_string_to_metric_families(render_metrics(counts, STATE).decode()):
        assert family.documentation
        for sample in family.samples:
            assert sample.labels.keys() <= {"code", "reason", "graph", "le", "version"}
