"""The processes of folds: failures, their end, permissions of their files, and publishing of their graphs."""

from __future__ import annotations

import gc
import os
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning import fold_process, folding
from speculant_graph.draft.learning.fold_process import Fold, FoldJob, complaint
from speculant_graph.draft.learning.layers import HIDDEN, find_layers, folder_of
from speculant_graph.draft.learning.learned_files import name_of
from speculant_graph.draft.learning.learned_store import LearnedStore, Memory, load_calibration
from speculant_graph.draft.mixing import first_calibration
from speculant_graph.graph.ngrams import NgramGraph
from support.graphs import counts_of
from support.learned import (
    FOLD,
    SMALL,
    TOKENIZER,
    counted,
    filled,
    fold_here,
    held,
    ids,
    learning,
    loaded,
    opened,
    settled,
    text_of,
)


def test_a_fold_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    ends: list[bool] = []
    expected = filled(tmp_path, 12)
    program = sys.executable
    monkeypatch.setattr(sys, "executable", None)
    monkeypatch.setattr(fold_process, "_MODULE", "speculant_graph.no_such_module")
    monkeypatch.setattr(folding, "RETRY_S", 0.0)
    with opened(tmp_path, 1 << 40, SMALL, FOLD, lambda _seconds, is_done: ends.append(is_done)) as files:
        files.append("", ids(text_of(13)))
        settled(files)
        assert len(warnings) == 1
        monkeypatch.setattr(sys, "executable", program)
        files.append("", ids(text_of(14)))
        settled(files)
        assert len(warnings) == 1, "one for several in a row"
        monkeypatch.undo()
        files.append("", ids(text_of(15)))
        settled(files)
    assert ends == [False, False, True]
    assert find_layers(folder_of(tmp_path, name_of(""))).layers
    assert held(tmp_path) == expected + counted(map(text_of, (13, 14, 15)))


def modes_below(folder: Path) -> set[tuple[bool, int]]:
    """Return (whether it is a folder, permissions) of everything in a folder, which may change meanwhile."""
    found = set()
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                found.add((name in folders, stat.S_IMODE((Path(path) / name).stat().st_mode)))
    return found


def test_only_this_user_can_read(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        with opened(tmp_path / "learned", 1 << 40, SMALL, FOLD) as files:
            for number in range(1, 13):
                files.append("", ids(text_of(number)))
            modes = set()
            while files._folding._fold is not None or not modes:
                files._submit(lambda: None).result()
                modes |= modes_below(tmp_path / "learned")
            settled(files)
            modes |= modes_below(tmp_path / "learned")
    finally:
        os.umask(previous)
    assert modes == {(True, 0o700), (False, 0o600)}
    assert find_layers(folder_of(tmp_path / "learned", name_of(""))).layers


def wait_for_process(files) -> int:
    while files._folding._fold is None or files._folding._fold.process is None:
        time.sleep(0.002)
    return files._folding._fold.process.pid


@pytest.mark.parametrize("end", ["forget", "close"])
def test_a_fold_ends_with_its_tenant_and_its_owner(tmp_path: Path, end: str) -> None:
    expected = filled(tmp_path, 12)
    other = filled(tmp_path, 3, "other")
    with opened(tmp_path, 1 << 40, SMALL, FOLD) as files:
        files.append("", ids(text_of(13)))
        pid = wait_for_process(files)
        os.kill(pid, signal.SIGSTOP)
        files.forget("") if end == "forget" else files.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert not list(tmp_path.glob(f"*/{HIDDEN}*"))
        if end == "forget":
            assert not list(tmp_path.glob(f"{name_of('')}*"))
            files.append("", ids(text_of(14)))
            assert loaded(files) == [text_of(14)]
    assert held(tmp_path, "other") == other
    assert held(tmp_path) == (counted([text_of(14)]) if end == "forget" else expected + counted([text_of(13)]))


FOLD_AND_WAIT = """
from speculant_graph.config import FoldConfig
files.close()
fold = FoldConfig(enabled=True, young_tokens=2)
files = LearnedFiles(Path(sys.argv[1]), Fingerprint("t", "ab" * 32, 3_000), 500, fold)
files.append("", np.arange(10))
while files._folding._fold is None or files._folding._fold.process is None:
    pass
print(files._folding._fold.process.pid, flush=True)
input()
"""


def test_a_fold_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    with learning(tmp_path, FOLD_AND_WAIT) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline_s = time.monotonic() + 30
    status = Path(f"/proc/{pid}/status")
    while status.exists() and "Z (zombie)" not in status.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_graphs_are_told_and_old_ones_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    told: list[tuple[NgramGraph, ...]] = []
    with LearnedStore(10_000, tmp_path, SMALL, FOLD) as store:
        memory: Memory = store.memory("a")
        assert store.graphs("a") == ()
        texts = []
        assert store._files is not None
        for number in range(1, 40):
            texts.append(text_of(number))
            store.keep(memory, np.array(texts[-1], np.int32))
            settled(store._files)
            if not told or told[-1] is not memory.graphs:
                told.append(memory.graphs)
        graphs = store.graphs("a")
        assert graphs
        assert graphs is store.graphs("a") is memory.graphs
        assert len(told) > 3
        for old in told:  # their files are deleted
            of_old = counted([])
            for graph in old:
                of_old += counts_of(graph)
            num_texts = sum(graph.metadata.num_documents for graph in old)
            assert of_old == counted(texts[:num_texts])
        descriptors = len(os.listdir("/dev/fd"))
        told.clear()
        del old, graph
        gc.collect()
        assert len(os.listdir("/dev/fd")) < descriptors
        assert store.graphs("b") == ()
    with LearnedStore(10_000, tmp_path, SMALL) as store:
        again = store.graphs("a")
        assert [graph.metadata for graph in again] == [graph.metadata for graph in graphs]
        store.forget("a")
        assert store.graphs("a") == ()


def resident_bytes(path: Path) -> int:
    """Return how much of a mapped file is in this process's resident memory."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    sizes = [next(line for line in lines if line.startswith("Rss:")) for line in lines if line.endswith(str(path))]
    return sum(1024 * int(size.split()[1]) for size in sizes)


def test_graphs_of_idle_tenants_leave_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    with LearnedStore(10_000, tmp_path, SMALL, FOLD) as store:
        assert store._files is not None
        for name in ("idle", "active"):
            memory = store.memory(name)
            for number in range(1, 20):
                store.keep(memory, np.array(text_of(number), np.int32))
                settled(store._files)
        layers = [find_layers(folder_of(tmp_path, name_of(name))).layers for name in ("idle", "active")]
        paths = [found[0].path for found in layers]
        graphs = [store.graphs(name)[0] for name in ("idle", "active")]
        counts = [counts_of(graph) for graph in graphs]
        assert all(resident_bytes(path) for path in paths)

        store.save(first_calibration(), is_routine=True)
        assert all(resident_bytes(path) for path in paths)

        store.memory("idle").used_s -= 1_000.0
        store.save(first_calibration(), is_routine=True)
        assert [bool(resident_bytes(path)) for path in paths] == [False, True]
        assert [counts_of(graph) for graph in graphs] == counts


def test_a_fold_learns_how_reliable_contexts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    config = FoldConfig(enabled=True, young_tokens=6_000)
    with opened(tmp_path, 1 << 40, SMALL, config) as files:
        for _ in range(6):
            files.append("", ids(np.random.default_rng(1).integers(0, 30, 5_000).tolist()))
            settled(files)
    [*_, layer] = find_layers(folder_of(tmp_path, name_of(""))).layers
    facts = NgramGraph.load(layer.path).metadata
    assert load_calibration(facts.calibration).bins[:, 0].sum() > 0
    assert facts.document_boundaries
    assert facts.num_documents > 1


def test_text_that_leaves_memory_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_here(monkeypatch)
    fold = FOLD.model_copy(update={"young_tokens": 1_000_000})
    with LearnedStore(60, tmp_path, SMALL, fold) as store:
        memory: Memory = store.memory("a")
        assert store._files is not None
        for number in range(1, 20):
            store.keep(memory, np.array(text_of(number), np.int32))
            settled(store._files)
        assert store.graphs("a"), "no more stays text than memory takes"


def test_a_signal_is_named_as_the_reason(tmp_path: Path) -> None:
    """Python's fault handler also writes lines, whose last one says nothing."""
    fold = Fold("acme", FoldJob(str(tmp_path), 1, TOKENIZER), 1, 1, 1, ())
    (tmp_path / "messages").write_text("Fatal Python error: Bus error\n  <no Python frame>\n", encoding="utf-8")
    for number in signal.valid_signals():
        assert complaint(fold, -number).startswith(f"signal {int(number)} ")
    assert complaint(fold, 1) == "  <no Python frame>"
