"""The cost of passes: interpolation and extrapolation of the table, its measurement, and its file."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from speculant_graph.budget import CURVES
from speculant_verifier.speculation import (
    CostPoint,
    CostTable,
    ObservedCosts,
    load_or_measure,
    measurement,
)

MS = st.floats(0.01, 1e4)


@st.composite
def tables(draw):
    points = []
    for batch in draw(st.sets(st.integers(1, 64), min_size=1, max_size=4)):
        lengths = {1, *draw(st.sets(st.integers(2, 128), max_size=5))}
        points += [CostPoint(batch, length, draw(MS)) for length in lengths]
    return CostTable(tuple(draw(st.permutations(points))), 100, draw(st.sampled_from(["dense", "cpu-moe"])))


def slow_ms(table, batch, tokens):
    """Return the time by the definition, for integer numbers of tokens only."""
    by_batch = {}
    for point in table.points:
        by_batch.setdefault(point.batch, {})[point.tokens] = point.ms

    def on(times, wanted):
        rising, highest = [], 0.0
        for length in sorted(times):
            highest = max(highest, times[length])
            rising.append((length, highest))
        shape, last = CURVES[table.typical], rising[-1]

        def at(length):
            return shape.relative(length) + 1e-9 * length

        missing = [length for length in (1, 2, 4, 8, 16, 32, 64) if length not in times]
        for (left, low), (right, high) in itertools.pairwise(rising.copy()):
            for length in missing:
                if left < length < right:
                    rising.append((length, low + (high - low) * (at(length) - at(left)) / (at(right) - at(left))))
        rising += [
            (length, last[1] * shape.relative(length) / shape.relative(last[0]))
            for length in missing
            if length > last[0]
        ]
        rising.sort()
        if wanted <= rising[0][0]:
            return rising[0][1]
        for (left, low), (right, high) in itertools.pairwise(rising):
            if wanted <= right or right == rising[-1][0]:
                return low + (high - low) * (wanted - left) / (right - left)
        raise AssertionError

    batches = sorted(by_batch)
    if batch < batches[0]:
        return on(by_batch[batches[0]], tokens * batch / batches[0])
    if batch > batches[-1]:
        return on(by_batch[batches[-1]], tokens * batch / batches[-1])
    highest, estimates = 0.0, []
    for measured in batches:
        highest = max(highest, on(by_batch[measured], tokens))
        estimates.append(highest)
    for number, measured in enumerate(batches):
        if batch == measured:
            return estimates[number]
        if batch < measured:
            left, low, high = batches[number - 1], estimates[number - 1], estimates[number]
            return low + (high - low) * (batch - left) / (measured - left)
    raise AssertionError


@given(tables(), st.integers(1, 130), st.integers(1, 260))
def test_estimates_are_those_of_the_definition(table, batch, tokens):
    assert table.ms(batch, np.array([tokens]))[0] == pytest.approx(slow_ms(table, batch, tokens), rel=1e-9)


@st.composite
def rising(draw, most=64):
    """Measured passes of one batch size, with times in order and without noise."""
    widths = sorted({1, *draw(st.sets(st.integers(2, most), min_size=1, max_size=4))})
    times = sorted(draw(st.lists(MS, min_size=len(widths), max_size=len(widths))))
    return CostTable(tuple(CostPoint(1, *each) for each in zip(widths, times, strict=True)), 0)


@given(rising())
def test_estimates_rise_and_meet_what_was_measured(table):
    seconds = table.seconds(1, 200)
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()
    assert [seconds[each.tokens] for each in table.points] == pytest.approx([each.ms / 1e3 for each in table.points])


@given(rising(most=32))
def test_many_tokens_are_never_free_unless_they_were_measured(table):
    assert table.relative(1, 64) > 1.4 * table.relative(1, table.points[-1].tokens)
    assert table.relative(4, 64) > 1.0, "of a batch that was not measured, either"


def test_one_width_alone_is_scaled_too():
    assert CostTable((CostPoint(1, 1, 107.0),), 0).relative(1, 64) == pytest.approx(CURVES["dense"].relative(64))


@given(rising(), st.floats(0.2, 5.0), st.lists(st.tuples(st.integers(1, 40), st.floats(0.5, 3.0)), max_size=30))
def test_passes_that_happen_correct_what_is_believed(table, slowness, passes):
    """A slow machine scales all estimates, a slow width only its own; costs never fall with the width."""
    believed, costs = table.seconds(1, 100), ObservedCosts(table)
    assert costs.seconds(1, 100) == pytest.approx(believed)
    for width in (1, 9, 33) * 30:
        costs.observe(1, width, slowness * believed[width])
    expected = min(4.0, max(0.25, slowness)) * believed
    assert costs.seconds(1, 100) == pytest.approx(expected)
    for _ in range(80):
        costs.observe(1, 1, believed[1])
        costs.observe(1, 33, 2.0 * believed[33])
    corrected = costs.seconds(1, 33)
    assert corrected[33] / corrected[1] > 1.3 * believed[33] / believed[1]
    assert costs.seconds(2, 66) == pytest.approx(table.seconds(2, 66)), "of other batches nothing was seen"
    for width, factor in passes:
        costs.observe(1, width, factor * believed[width])
        costs.observe(1, width, 0.0)
        assert (np.diff(costs.seconds(1, 100)) >= 0.0).all()


class Slow:
    """A model with given pass durations, on a simulated clock."""

    def __init__(self, target, monkeypatch, seconds):
        self.passes, self._now, self._seconds, self._forward = [], 0.0, seconds, target.forward
        monkeypatch.setattr(measurement, "time", SimpleNamespace(perf_counter=lambda: self._now))
        monkeypatch.setattr(target, "forward", self.forward)
        monkeypatch.setattr(target, "prefill", self.prefill)

    def forward(self, pending, cache, rows, drafts):
        width = 1 + max(map(len, drafts))
        self.passes.append((len(pending), width))
        self._now += self._seconds * (1.0 + 0.1 * (len(pending) * width - 1))

    def prefill(self, chunks, cache, rows):
        self._now += self._seconds * (1.0 + 0.1 * (sum(map(len, chunks)) - 1))

    @property
    def spent_s(self):
        return self._now


@pytest.mark.parametrize("seconds", [1e-4, 1e-3, 0.01, 0.03, 0.1, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("most_nodes", [8, 300])
def test_a_slow_model_has_a_second_width_in_time(gpt_oss, monkeypatch, tmp_path, seconds, most_nodes):
    """The requested batches come first, and no pass starts after the time is up."""
    slow = Slow(gpt_oss, monkeypatch, seconds)
    table = load_or_measure(gpt_oss, (1, 8, 4), tmp_path, most_nodes=most_nodes)
    measured = {(each.batch, each.tokens) for each in table.points}
    assert {(1, 1), (1, 2)} <= measured
    assert table.fewest_widths >= 2
    assert slow.spent_s < measurement.BUDGET_S + 4.2 * seconds
    if most_nodes == 8 and seconds < 0.5:
        assert (1, 9) in measured
    if seconds < 5e-4 and most_nodes == 8:
        assert measured == {(batch, width) for batch in (1, 4, 8) for width in (1, 2, 4, 8, 9)}
    assert table.relative(1, 64) > 1.5


def test_the_most_important_batches_have_all_widths_of_drafts_first(gpt_oss, monkeypatch, tmp_path):
    slow = Slow(gpt_oss, monkeypatch, 1e-4)
    load_or_measure(gpt_oss, (1, 16, 4, 8), tmp_path, most_nodes=4)
    wanted = [
        (batch, width)
        for batches in ((1, 16), (4, 8))
        for widths in ((1, 2, 5), (4,))
        for batch in batches
        for width in widths
    ]
    assert list(dict.fromkeys(slow.passes)) == wanted


def test_long_measurements_are_told(gpt_oss, monkeypatch, tmp_path):
    slow, told = Slow(gpt_oss, monkeypatch, 1.5), []
    logger.enable("speculant_verifier")
    sink = logger.add(lambda message: told.append((slow.spent_s, message.record["message"])), level="INFO")
    load_or_measure(gpt_oss, (1,), tmp_path)
    logger.remove(sink)
    assert told[0][0] == 0.0
    assert "about 6 s" in told[0][1]
    assert any("measuring the cost of passes: " in message for _, message in told[1:])


def test_a_table_of_one_width_is_measured_anew(gpt_oss, tmp_path, warnings):
    measure(gpt_oss, tmp_path)
    [path] = tmp_path.iterdir()
    path.write_bytes(b'{"points": [{"batch": 1, "tokens": 1, "ms": 107.0}], "context": 200}')
    assert measure(gpt_oss, tmp_path).fewest_widths >= 2
    assert "measuring again" in warnings[0]


def measure(target, folder):
    return load_or_measure(target, (1,), folder)


def test_a_measurement_is_kept_for_the_same_conditions(gpt_oss, llama, tmp_path):
    folder = tmp_path / "deep" / "folder"
    first = measure(gpt_oss, folder)
    [path] = folder.iterdir()
    content = path.read_bytes()
    assert measure(gpt_oss, folder) == first
    assert path.read_bytes() == content
    measure(llama, folder)
    load_or_measure(gpt_oss, (1, 2), folder)
    assert len(list(folder.iterdir())) == 3, "another model and other batches are other files"


@pytest.mark.parametrize(
    "damage",
    [b"", b'{"points": [], "context": 1}', b"\xff\xfe"],
)
def test_a_damaged_file_is_measured_again_with_a_warning(gpt_oss, tmp_path, damage, warnings):
    measure(gpt_oss, tmp_path)
    [path] = tmp_path.iterdir()
    path.write_bytes(damage)
    table = measure(gpt_oss, tmp_path)
    assert "measuring again" in warnings[0]
    assert measure(gpt_oss, tmp_path) == table, "the file was written anew"
    assert len(warnings) == 1
    assert list(tmp_path.iterdir()) == [path]
