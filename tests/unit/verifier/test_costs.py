"""What passes cost: the table between and beyond its points, the measurement, and the file it is kept in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_verifier.speculation import CostPoint, CostTable, load_or_measure

MS = st.floats(0.01, 1e4)


@st.composite
def tables(draw):
    points = []
    for batch in draw(st.sets(st.integers(1, 64), min_size=1, max_size=4)):
        lengths = {1, *draw(st.sets(st.integers(2, 128), max_size=5))}
        points += [CostPoint(batch, length, draw(MS)) for length in lengths]
    return CostTable(tuple(draw(st.permutations(points))), 100)


def slow_ms(table, batch, tokens):
    """The definition, read aloud: whole numbers of tokens only."""
    by_batch = {}
    for point in table.points:
        by_batch.setdefault(point.batch, {})[point.tokens] = point.ms

    def on(times, wanted):
        rising, highest = [], 0.0
        for length in sorted(times):
            highest = max(highest, times[length])
            rising.append((length, highest))
        if len(rising) == 1 or wanted <= rising[0][0]:
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
    assert table.ms(batch, tokens) == pytest.approx(slow_ms(table, batch, tokens), rel=1e-9)


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
