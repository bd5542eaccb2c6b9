"""Folding learned text into graphs, compared with lists of texts: no text is lost or counted twice."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning import folding, learned_files
from speculant_graph.draft.learning.database import Database
from speculant_graph.draft.learning.layers import HIDDEN, find_layers, folder_of
from speculant_graph.draft.learning.learned_files import name_of
from speculant_graph.graph.ngrams import NgramGraph
from support.graphs import counts_of
from support.learned import (
    FOLD,
    SMALL,
    counted,
    filled,
    fold_here,
    held,
    ids,
    loaded,
    opened,
    path_of,
    settled,
    text_of,
)

TENANTS = st.sampled_from(["", "acme"])


class FoldsAgainstLists(RuleBasedStateMachine):
    """Rows and graph files together hold the same counts as a list of texts, after any operations."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.number = 0
        self.texts: dict[str, list[list[int]]] = {}
        self.patch = pytest.MonkeyPatch()
        fold_here(self.patch)

    @initialize()
    def open(self) -> None:
        self.files = opened(self.folder, 1 << 40, SMALL, FOLD)

    @rule(tenant=TENANTS, count=st.integers(1, 8))
    def append(self, tenant: str, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.files.append(tenant, ids(text_of(self.number)))
            self.texts.setdefault(tenant, []).append(text_of(self.number))

    @rule(tenant=TENANTS)
    def forget(self, tenant: str) -> None:
        self.files.forget(tenant)
        self.texts.pop(tenant, None)
        assert not list(self.folder.glob(f"{name_of(tenant)}*"))

    @rule(is_on=st.booleans())
    def reopen(self, is_on: bool) -> None:
        self.files.close()
        self.files = opened(self.folder, 1 << 40, SMALL, FoldConfig(**FOLD.model_dump() | {"enabled": is_on}))

    @rule(seconds=st.sampled_from([-1e6, 1e6]))
    def set_the_clock(self, seconds: float) -> None:
        now_ns = time.time_ns() + round(seconds * 1e9)
        self.patch.setattr(time, "time_ns", lambda: now_ns)

    @invariant()
    def holds_what_lists_hold(self) -> None:
        settled(self.files)
        for tenant in ("", "acme"):
            held_now = counted(loaded(self.files, tenant))
            for layer in find_layers(folder_of(self.folder, name_of(tenant))).layers:
                held_now += counts_of(NgramGraph.load(layer.path))
            assert held_now == counted(self.texts.get(tenant, []))

    def teardown(self) -> None:
        self.files.close()
        self.patch.undo()
        shutil.rmtree(self.folder)


TestFoldsAgainstLists = FoldsAgainstLists.TestCase
TestFoldsAgainstLists.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)


def test_every_moment_of_publishing_may_be_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner may be killed at any change. A copy of the folder before or after each change shows the result."""
    folder, copies = tmp_path / "learned", []
    filled(folder, 12)
    fold_here(monkeypatch)

    def copied(function):
        def change(*arguments, **named):
            copy()
            result = function(*arguments, **named)
            copy()
            return result

        return change

    def copy() -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(folder, copies[-1], ignore=shutil.ignore_patterns("shared*", "*-shm"))

    monkeypatch.setattr(Path, "replace", copied(Path.replace))
    monkeypatch.setattr(Path, "unlink", copied(Path.unlink))
    monkeypatch.setattr(Database, "remove", copied(Database.remove))
    expected = None
    with opened(folder, 1 << 40, SMALL, FOLD) as files:
        for number in range(13, 25):
            before = len(copies)
            files.append("", ids(text_of(number)))
            settled(files)
            expected = counted(map(text_of, range(1, number + 1)))
            for copy in copies[before:]:
                copy.with_suffix(".number").write_text(str(number), encoding="utf-8")
    monkeypatch.undo()
    assert len(copies) > 20
    for copy in copies:
        number = int(copy.with_suffix(".number").read_text(encoding="utf-8"))
        assert held(copy) == counted(map(text_of, range(1, number + 1)))
        assert not list(copy.glob(f"*/{HIDDEN}*"))
    assert held(folder) == expected


def test_ids_rise_where_the_database_is_new_and_the_clock_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold_here(monkeypatch)
    expected = filled(tmp_path, 12)
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        files.append("", ids(text_of(13)))
        settled(files)
    assert find_layers(folder_of(tmp_path, name_of(""))).layers
    young = held(tmp_path) - expected - counted([text_of(13)])
    assert not young
    in_graphs = counted([])
    for layer in find_layers(folder_of(tmp_path, name_of(""))).layers:
        in_graphs += counts_of(NgramGraph.load(layer.path))
    path_of(tmp_path).unlink()  # as after damage
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
    with opened(tmp_path, 1 << 40, SMALL) as files:
        files.append("", ids(text_of(14)))
    assert held(tmp_path) == in_graphs + counted([text_of(14)])


def test_old_text_is_forgotten_also_of_tenants_that_are_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    filled(tmp_path, 12)
    filled(tmp_path, 2, "away")
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        files.append("", ids(text_of(13)))
        settled(files)
    later_ns = time.time_ns() + 3 * 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    with opened(tmp_path, 1 << 40, SMALL, FoldConfig(enabled=True, young_tokens=100, max_days=4.0)) as files:
        files.append("", ids(text_of(14)))
        settled(files)
    assert held(tmp_path) == counted(map(text_of, range(1, 15)))
    with opened(tmp_path, 1 << 40, SMALL, FoldConfig(enabled=True, young_tokens=100, max_days=2.0)) as files:
        settled(files)
        files.save()
        settled(files)
    assert held(tmp_path) == counted([text_of(14)])
    assert held(tmp_path, "away") == counted([])


def test_a_slow_tenants_text_is_forgotten_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    day_ns, clock = 86_400 * 10**9, [time.time_ns()]
    monkeypatch.setattr(time, "time_ns", lambda: clock[0])
    monkeypatch.setattr(learned_files, "_SWEEP_S", 0.0)
    config = FoldConfig(enabled=True, young_tokens=100, max_days=8.0)
    with opened(tmp_path, 1 << 40, SMALL, config) as files:
        for number in range(1, 60):
            clock[0] += day_ns
            files.append("", ids(text_of(number)))
            files.save()
            settled(files)
            layers = find_layers(folder_of(tmp_path, name_of(""))).layers
            assert len(layers) <= 8
            assert all(clock[0] // 10**6 - layer.first <= 12 * day_ns // 10**6 for layer in layers)
    kept = held(tmp_path)
    first = next(number for number in range(1, 60) if kept[text_of(number)[0],])
    assert kept == counted(map(text_of, range(first, 60)))
    assert 60 - 10 <= first <= 60 - 8


def test_a_fold_that_fails_after_publishing_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    monkeypatch.setattr(folding, "RETRY_S", 0.0)
    removed, calls = Database.remove, [0]

    def fail_often(database: Database, ranges: list[tuple[int, int]]) -> None:
        calls[0] += 1
        if calls[0] % 3:
            raise OSError(28, "no space")
        removed(database, ranges)

    monkeypatch.setattr(Database, "remove", fail_often)
    monkeypatch.setattr(folding, "sync", lambda path: fail_often(path, []) if calls[0] % 5 == 0 else None)
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        for number in range(1, 60):
            files.append("", ids(text_of(number)))
            settled(files)
    monkeypatch.undo()
    assert find_layers(folder_of(tmp_path, name_of(""))).layers
    assert held(tmp_path) == counted(map(text_of, range(1, 60)))


def test_more_than_is_kept_is_forgotten_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    config = FoldConfig(enabled=True, young_tokens=100, max_tokens=1_000)
    with opened(tmp_path, 100, SMALL, config) as files:
        for number in range(1, 120):
            files.append("", ids(text_of(number)))
            settled(files)
            layers = find_layers(folder_of(tmp_path, name_of(""))).layers
            assert sum(layer.num_tokens for layer in layers) <= 1_000
    kept = held(tmp_path)
    first = next(number for number in range(1, 120) if kept[text_of(number)[0],])
    assert kept == counted(map(text_of, range(first, 120)))
    assert sum(len(text_of(number)) for number in range(first, 120)) >= 750


def test_damage_costs_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    fold_here(monkeypatch)
    monkeypatch.setattr(folding, "RETRY_S", 0.0)
    filled(tmp_path, 10)
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        files.append("", ids(text_of(11)))
        settled(files)
        [layer] = find_layers(folder_of(tmp_path, name_of(""))).layers
        lost = counts_of(NgramGraph.load(layer.path))
        content = bytearray(layer.path.read_bytes())
        content[len(content) // 2] ^= 1
        layer.path.chmod(0o600)
        layer.path.write_bytes(content)
        for number in range(12, 40):
            files.append("", ids(text_of(number)))
            settled(files)
    assert held(tmp_path) == counted(map(text_of, range(1, 40))) - lost
    assert any(str(layer.path.with_suffix(".damaged")) in message for message in warnings)
    layers = find_layers(folder_of(tmp_path, name_of(""))).layers
    layers[0].path.write_bytes(b"no graph")
    with opened(tmp_path, 1 << 40, SMALL) as files:
        files.append("", ids(text_of(40)))
        assert loaded(files)[-1] == text_of(40)
    assert layers[0].path.with_suffix(".damaged").exists()
    with opened(tmp_path, 1 << 40, SMALL) as files:
        files.forget("")
    assert [path.name for path in tmp_path.iterdir()] == ["shared.sqlite"]


def test_what_is_no_token_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        files.append("", ids([-1] * 101))
        settled(files)
        files.append("", ids([1, 2, 3, -1, 4, 5, 999_999, 6, -1] * 20))
        files.append("", ids([7]))
        settled(files)
        assert loaded(files) == [[7]]
    assert held(tmp_path) == counted([*[[1, 2, 3], [4, 5], [6]] * 20, [7]])
