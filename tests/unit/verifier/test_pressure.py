"""What is reduced when memory is short, and when it is restored."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from loguru import logger

from speculant_graph.machine import _control_groups, available_bytes
from speculant_verifier.engine import memory_pressure
from speculant_verifier.engine.memory_pressure import MemoryPressure
from speculant_verifier.engine.totals import EngineTotals


class Part:
    def __init__(self, name: str, degrees: int) -> None:
        self.degradable, self.left, self.degrees = name, degrees, degrees

    def reduce(self) -> int | None:
        if not self.left:
            return None
        self.left -= 1
        return 100

    def restore(self) -> None:
        self.left += 1


class Kept:
    num_bytes = 50

    def clear(self) -> None:
        self.num_bytes = 0


@pytest.fixture
def messages():
    found = []
    logger.enable("speculant_verifier")
    sink = logger.add(found.append, level="INFO", format="{message}")
    yield found
    logger.remove(sink)


@pytest.fixture
def clock(monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(memory_pressure.time, "monotonic", lambda: now[0])
    return now


def test_caches_are_cleared_and_parts_are_reduced_in_order_and_restored_last_first(clock, messages):
    parts, spare, totals = [Part("rows", 1), Part("nodes", 2)], [-1], EngineTotals()
    cache, target = Kept(), SimpleNamespace(free_memory=lambda: None)
    memory = MemoryPressure(target, [cache], parts, lambda: spare[0], totals)
    assert memory.shed()
    assert cache.num_bytes == 0
    assert totals.num_reductions_in_force == 0, "nothing is reduced where caches suffice"
    cache.num_bytes = 50
    seen = []

    def look(after_s: float) -> None:
        clock[0] += after_s
        memory.look()
        seen.append(tuple(part.left for part in parts))

    for _ in range(5):
        look(1.0)
    assert cache.num_bytes == 0
    assert seen == [(0, 2), (0, 1), (0, 0), (0, 0), (0, 0)]
    assert totals.num_reductions == {"rows": 1, "nodes": 2}
    assert totals.num_reductions_in_force == 3
    assert not memory.shed()
    seen.clear()
    spare[0] = 120
    look(60.0)
    spare[0] = 130
    look(0.1)  # too soon after the last check
    look(1.0)
    look(1.0)  # too soon after the last restore
    look(30.0)
    look(30.0)
    assert seen == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (1, 2)]
    assert totals.num_reductions_in_force == 0
    short = [line for line in messages if "memory is short" in line]
    again = [line for line in messages if "memory is free again" in line]
    assert len(short) == len(again) == 3


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_control_groups(tmp_path, version):
    """The group's own limit and its ancestors' limits count; page cache counts as free."""
    top = tmp_path / "memory" if version == 1 else tmp_path
    limit, use = [("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")][version - 1]
    prefix = "total_" if version == 1 else ""
    for folder, most, used in ((top, "max", 900), (top / "a", 800, 500), (top / "a" / "b", 600, 300)):
        folder.mkdir(exist_ok=True, parents=True)
        (folder / limit).write_text(f"{most}\n")
        (folder / use).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{prefix}active_file 10\n{prefix}inactive_file 90\n")
    own = tmp_path / "own"
    line = "3:memory:/a/b\n9:pids:/\n" if version == 1 else "0::/a/b\n"
    own.write_text(line)
    assert _control_groups(tmp_path, own) == [(600, 200), (800, 400)]
    own.write_text(line.replace("/a/b", "/elsewhere"))  # the group's name outside of the container
    assert _control_groups(tmp_path, own) == []
    (top / limit).write_text("700")
    assert _control_groups(tmp_path, own) == [(700, 800)]
    assert _control_groups(tmp_path, tmp_path / "none") == []
    assert available_bytes() is None or available_bytes() > 0
