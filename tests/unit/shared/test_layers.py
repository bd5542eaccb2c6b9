"""A tenant's graph files: which are valid, which a fold merges, and which are dropped."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning.layers import (
    MS_PER_DAY,
    SHARE,
    Layer,
    find_layers,
    kept_from,
    merge_from,
    name_of,
)
from support.graphs import graph_of

RANGES = st.tuples(st.integers(1, 30), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
SIZES = st.lists(st.integers(50, 400), min_size=1, max_size=80)


def layer(first: int, last: int, num_tokens: int) -> Layer:
    return Layer(Path(name_of(first, last)), first, last, num_tokens, 1, 1, 1)


def folded(sizes: list[int], config: FoldConfig, ms_per_fold: int = 1) -> tuple[list[Layer], list[list[Layer]], int]:
    """Return the files after all folds, the files after each fold, and the number of tokens written."""
    layers: list[Layer] = []
    all_layers, written = [], 0
    for number, size in enumerate(sizes, start=1):
        now = number * ms_per_fold
        index = merge_from(layers, size, now, config)
        merged = sum(each.num_tokens for each in layers[index:]) + size
        first = layers[index].first if index < len(layers) else now
        layers = [*layers[:index], layer(first, now, merged)]
        layers = layers[kept_from(layers, now, config) :]
        all_layers.append(layers)
        written += merged
    return layers, all_layers, written


@given(sizes=SIZES)
def test_files_are_few_and_text_is_written_few_times(sizes: list[int]) -> None:
    config = FoldConfig(max_tokens=0)
    layers, all_layers, written = folded(sizes, config)
    assert sum(each.num_tokens for each in layers) == sum(sizes)
    levels = math.log2(sum(sizes) / min(sizes)) + 1
    for each in all_layers:
        assert all(before.num_tokens >= 2 * after.num_tokens for before, after in pairwise(each))
        assert len(each) <= levels
    # Every merge after a token's first one puts it into a file at least 1.5 times as large.
    assert written <= sum(sizes) * (1 + math.log(sum(sizes) / min(sizes), 1.5))


@given(sizes=SIZES, most=st.integers(1_000, 8_000))
def test_what_is_too_much_is_forgotten_oldest_first(sizes: list[int], most: int) -> None:
    config = FoldConfig(max_tokens=most)
    _, all_layers, _ = folded(sizes, config)
    total = 0
    for size, each in zip(sizes, all_layers, strict=True):
        total += size
        kept = sum(layer.num_tokens for layer in each)
        assert kept <= most
        assert all(layer.num_tokens <= max(most // SHARE, 400) for layer in each)
        assert kept >= min(total, most - max(most // SHARE, 400))
        assert each[-1].last == max(layer.last for layer in each)


@given(sizes=SIZES, days=st.sampled_from([0.5, 3.0, 10.0]), hours=st.integers(1, 30))
def test_what_is_too_old_is_forgotten(sizes: list[int], days: float, hours: int) -> None:
    config = FoldConfig(max_tokens=0, max_days=days)
    step = hours * MS_PER_DAY // 24
    _, all_layers, _ = folded(sizes, config, step)
    for number, each in enumerate(all_layers, start=1):
        now = number * step
        for layer in each:
            assert layer.last >= now - days * MS_PER_DAY
            assert layer.first >= now - days * (1 + 1 / SHARE) * MS_PER_DAY
        youngest = now - days * MS_PER_DAY
        assert each[0].first <= max(step, youngest + step), "what is young enough is kept"


@given(ranges=st.lists(RANGES, max_size=8, unique=True))
def test_a_file_that_another_one_covers_does_not_count(tmp_path_factory, ranges: list[tuple[int, int]]) -> None:
    folder = tmp_path_factory.mktemp("layers")
    graph_of([[1, 2, 3]], 2, 10, boundaries=True).save(folder / "graph")
    content = (folder / "graph").read_bytes()
    for each in ranges:
        (folder / name_of(*each)).write_bytes(content)
    for other in ("9-8.graph", "x-3.graph", "1-3.graph.tmp", ".fold-1"):
        (folder / other).write_bytes(b"")
    found = find_layers(folder)
    kept = [
        each
        for each in sorted(ranges)
        if not any(other != each and other[0] <= each[0] and each[1] <= other[1] for other in ranges)
    ]
    assert [layer.ids for layer in found.layers] == kept
    assert len(found.covered) == len(ranges) - len(kept)
    assert not found.damaged
    for path in folder.iterdir():
        path.unlink()
    (folder / name_of(1, 9)).write_bytes(content[: len(content) // 2])
    (folder / name_of(2, 3)).write_bytes(content)
    found = find_layers(folder)
    assert [layer.ids for layer in found.layers] == [(2, 3)], "what can't be read covers nothing"
    assert [path.name for path, _ in found.damaged] == [name_of(1, 9)]


def test_without_a_folder_there_is_nothing(tmp_path: Path) -> None:
    found = find_layers(tmp_path / "none")
    assert found.layers == found.covered == found.damaged == ()
