"""Target top-k rows, by the last token and the last two: newest first, bounded, and kept over restarts."""

from __future__ import annotations

import io
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from speculant_graph._core import ROW_DEPTH, ROW_WIDTH, LearnedMemory
from speculant_graph.draft.learning.learned_store import LearnedStore, load_rows, save_rows
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import ConfigError
from support.graphs import graph_of
from support.learned import path_of
from support.sessions import drafter_of, started

GRAPH = graph_of([[1, 2]], 2, 100)


def rows_of(memory: LearnedMemory) -> dict[int, list[list[int]]]:
    """Return the rows of every context with rows."""
    _, keys, rows_of_keys = memory.target_rows()
    return {
        int(key): [
            list(takewhile(lambda token: token >= 0, row))
            for row in rows.reshape(ROW_DEPTH, ROW_WIDTH).tolist()
            if row[0] >= 0
        ]
        for key, rows in zip(keys, rows_of_keys.reshape(-1, ROW_DEPTH * ROW_WIDTH), strict=True)
    }


def taught_memory(row: list[int]) -> LearnedMemory:
    """Return the memory of a tenant with one sequence that got ``row`` after the tokens 30 31."""
    drafter = drafter_of()
    started(drafter, 1, [30, 31], learn=True)
    drafter.recycle(1, [0], [row])
    drafter.accept(1, [9])
    return drafter.learned.memory("").core


def test_rows_are_saved_and_loaded() -> None:
    memory = taught_memory([70, 71, 72, 73, 74])
    assert memory.take_is_changed()
    assert not memory.take_is_changed()
    saved, loaded = save_rows(memory), LearnedMemory(1)
    load_rows(loaded, saved)
    assert rows_of(loaded) == rows_of(memory) == {31: [[70, 71, 72, 73]], (30 + 1 << 24) + 31: [[70, 71, 72, 73]]}


@pytest.mark.parametrize("damage", ["cut", "format", "shape"])
def test_damaged_rows_are_refused(damage: str) -> None:
    memory = taught_memory([3])
    saved = save_rows(memory)
    if damage == "cut":
        saved = saved[:-40]
    elif damage == "format":
        saved = save_rows(LearnedMemory(1)).replace(b"format", b"formal")
    elif damage == "shape":
        slots, keys, rows = memory.target_rows()
        buffer = io.BytesIO()
        np.savez(buffer, format=1, slots=slots, keys=keys, rows=rows.reshape(1, -1)[:, :-1])
        saved = buffer.getvalue()
    with pytest.raises(ConfigError):
        load_rows(LearnedMemory(1), saved)


def store_of(folder: Path) -> LearnedStore:
    return LearnedStore(1_000, folder, GRAPH.metadata.tokenizer)


def taught(folder: Path) -> None:
    """Give a row to a sequence of tenant "a", and close the store properly."""
    with store_of(folder) as store:
        drafter = SessionDrafter(GRAPH, learned=store)
        started(drafter, 1, [30, 31], tenant="a", learn=True)
        drafter.recycle(1, [0], [[70, 71]])
        drafter.accept(1, [9])
        drafter.save()


def test_rows_of_a_tenant_survive_a_restart_and_are_nobody_elses(tmp_path: Path) -> None:
    taught(tmp_path)
    with store_of(tmp_path) as store:
        drafter = drafter_of(GRAPH, learned=store)
        assert started(drafter, 1, [30, 31], tenant="a").token_ids[:1] == (70,)
        assert started(drafter, 2, [30, 31], tenant="b").token_ids == ()
        drafter.close(1)
        store.forget("a")
        assert not path_of(tmp_path, "a").exists(), "forgotten on disk, too"
        assert started(drafter, 3, [30, 31], tenant="a").token_ids == ()
