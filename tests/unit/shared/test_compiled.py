"""Machine code that is kept on disk is made again when any of its sources changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numba.core.compiler_lock import global_compiler_lock

import speculant_graph
from speculant_graph.graph.compile_clock import compile_time, compiling

CALLEE = """
from speculant_graph.graph.compiled import embedded

@embedded
def answer():
    return {}
"""
CALLER = """
from speculant_graph.draft.callee import answer
from speculant_graph.graph.compiled import compiled

@compiled
def ask():
    return answer()
"""
ASK = """
from speculant_graph.draft.caller import ask
print(ask(), sum(ask.stats.cache_hits.values()))
"""


TOGETHER = """
import numpy as np, sys, time
from speculant_graph.graph.compiled import compiled

@compiled
def total(values):
    result = 0
    for value in values:
        result += value
    return result

print("ready", flush=True)
sys.stdin.readline()
for kind in sys.argv[1:]:
    assert total(np.arange(4, dtype=kind)) == 6
print(len(total.stats.cache_misses), len(total.stats.cache_hits))
"""


FIRST_TIME = """
import json, sys, time
from speculant_graph.graph.compiled import compiled
from speculant_graph.graph.report import Stopwatch
from speculant_graph.log import log_to_stderr

@compiled
def callee(number):
    return number * 2

@compiled
def caller(number):
    return callee(number) + 1

log_to_stderr(sys.argv[1], waits=True)
begun = time.monotonic()
watch = Stopwatch()
with watch.measuring("count"):
    assert caller(3) == 7
report = watch.report("", ())
print(json.dumps([report.compile_s, report.count_s, report.total_s, time.monotonic() - begun]))
"""


def run_first_time(folder: Path, level: str) -> tuple[list[float], str]:
    script = folder / "first_time.py"
    script.write_text(FIRST_TIME)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(script), level]
    result = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    return json.loads(result.stdout), result.stderr


@pytest.mark.parametrize("level", ["INFO", "ERROR"])
def test_compiling_is_told_and_is_no_part_of_what_is_measured(tmp_path: Path, level: str) -> None:
    (compile_s, count_s, total_s, elapsed_s), shown = run_first_time(tmp_path, level)
    assert shown.count("compiling what this needs, the first time on this machine") == len(shown.splitlines()) == 1
    assert compile_s > 0.01
    assert compile_s + count_s <= compile_s + total_s + 0.001 <= elapsed_s + 0.002
    (compile_s, *_), shown = run_first_time(tmp_path, level)
    assert (compile_s, shown) == (0, "")


def test_compiling_that_lasts_is_told_again(tmp_path: Path) -> None:
    impatient = "from speculant_graph.graph import kernel_cache\nkernel_cache._SILENCE_S = 0.001\n"
    (tmp_path / "impatient.py").write_text(impatient + FIRST_TIME)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(tmp_path / "impatient.py"), "ERROR"]
    first, *later = subprocess.run(
        command, env=environment, text=True, capture_output=True, check=True
    ).stderr.splitlines()
    assert "compiling what this needs" in first
    assert len(later) == 2
    assert all(re.search(r" still compiling: \d+ s so far$", line) for line in later)


def test_compiling_for_another_kernel_is_counted_once() -> None:
    with global_compiler_lock:
        before, begun = compile_time(), time.monotonic()
        with compiling(), compiling():
            time.sleep(0.05)
            assert compile_time().wall_s - before.wall_s >= 0.05, "what is not over is counted, too"
        elapsed_s, after = time.monotonic() - begun, compile_time()
    assert 0.05 <= after.wall_s - before.wall_s <= elapsed_s
    assert 0 <= after.cpu_s - before.cpu_s <= elapsed_s


@pytest.mark.slow
def test_processes_that_start_together_compile_a_kernel_once(tmp_path: Path) -> None:
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    kinds = ["int64", "int32", "float64", "uint32", "uint8"]
    processes = []
    for number in range(4):
        command = [sys.executable, str(script), *kinds[number:], *kinds[:number]]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    counts = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        counts.append([int(number) for number in process.communicate(timeout=50)[0].split()])
    assert sum(misses for misses, _ in counts) == len(kinds), counts
    assert sum(hits for _, hits in counts) == 3 * len(kinds), counts


@pytest.mark.slow
def test_a_kernel_is_compiled_again_when_what_it_calls_has_changed(tmp_path: Path) -> None:
    [folder] = speculant_graph.__path__
    package = shutil.copytree(folder, tmp_path / "speculant_graph", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "draft" / "caller.py").write_text(CALLER)

    def answer_and_cache_hits(answer: int) -> str:
        (package / "draft" / "callee.py").write_text(CALLEE.format(answer))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        environment.pop("NUMBA_CACHE_DIR", None)
        command = [sys.executable, "-c", ASK]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert [answer_and_cache_hits(answer) for answer in (1, 1, 2, 2)] == ["1 0", "1 1", "2 0", "2 1"]
