"""``speculant build`` as a process: its input and output, and the files left after an interruption."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.ngrams import NgramGraph
from speculant_verifier.demo.run import MODEL_FOLDER

TEXT = "The parties agree to the terms of the agreement.\nA clause ends the agreement.\n" * 200

# The command, but its progress report pauses in the given phase and waits for a signal.
PAUSING = """
import sys, time
from contextlib import contextmanager
import speculant_graph.cli.graphs as graphs
from speculant_graph.cli.main import main

phase = sys.argv.pop(1)

@contextmanager
def pausing():
    def report(state):
        if state.phase == phase:
            print("waiting", flush=True)
            for _ in range(600):  # a signal on the way into one long sleep would be seen at its end
                time.sleep(0.1)
    yield report

graphs.show_progress = pausing
sys.exit(main())
"""


def speculant(*arguments: object, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "speculant_graph.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def build(cwd: Path, *arguments: object, **options: object) -> dict[str, object]:
    result = speculant("build", *arguments, "--tokenizer", MODEL_FOLDER, "--json", cwd=cwd, **options)
    assert result.returncode == 0, result.stderr
    assert not result.stderr, "nothing moves where nobody looks"
    report: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return report


NEW = ("build", "new.txt", "--tokenizer", str(MODEL_FOLDER), "-o", "g.pkl")


@contextmanager
def paused_in(phase: str, cwd: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PAUSING, phase, *(arguments or NEW)]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n", process.communicate()[1]
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``with_graph`` copies."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "old.txt").write_text("one two three " * 100, encoding="utf-8")
    (folder / "new.txt").write_text(TEXT, encoding="utf-8")
    build(folder, "old.txt", "-o", "g.pkl")
    return folder


@pytest.fixture
def with_graph(built_once: Path, tmp_path: Path) -> Path:
    """A folder with a finished graph, and with the text for a new one."""
    return shutil.copytree(built_once, tmp_path, dirs_exist_ok=True)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


COMMANDS = {
    "build": ("count", NEW),
    "update": ("tokenize", ("update", "g.pkl", "new.txt")),
    "merge": ("combine", ("merge", "g.pkl", "g.pkl", "-o", "g.pkl")),
    "prune": ("combine", ("prune", "g.pkl", "-o", "g.pkl")),
}


@pytest.mark.parametrize(
    ("command", "end"),
    [
        *(pytest.param(command, signal.SIGTERM, marks=pytest.mark.slow) for command in COMMANDS),
        pytest.param("build", signal.SIGHUP, marks=pytest.mark.slow),
        ("build", signal.SIGINT),
    ],
)
def test_signals_that_end_it(command: str, end: signal.Signals, with_graph: Path) -> None:
    before, old = listing(with_graph), (with_graph / "g.pkl").read_bytes()
    phase, arguments = COMMANDS[command]
    with paused_in(phase, with_graph, *arguments) as process:
        assert len(listing(with_graph)) > len(before), "it was in the middle of it"
        process.send_signal(end)
        _, shown = process.communicate(timeout=30)
    assert process.returncode == 128 + end, shown
    assert shown == ("speculant: interrupted\n" if end == signal.SIGINT else "")
    assert listing(with_graph) == before, "nothing half-written"
    assert (with_graph / "g.pkl").read_bytes() == old


@pytest.mark.parametrize("phase", [pytest.param("tokenize", marks=pytest.mark.slow), "save"])
def test_a_build_that_is_killed(phase: str, with_graph: Path) -> None:
    before, old = listing(with_graph), (with_graph / "g.pkl").read_bytes()
    with paused_in(phase, with_graph) as process:
        assert len(listing(with_graph)) > len(before), "it was in the middle of it"
        process.kill()
    assert (with_graph / "g.pkl").read_bytes() == old
    NgramGraph.load(with_graph / "g.pkl", complete=True)
    build(with_graph, "new.txt", "-o", "g.pkl")
    assert listing(with_graph) == before, "the next build sweeps what was left behind"
    assert (with_graph / "g.pkl").read_bytes() != old
    NgramGraph.load(with_graph / "g.pkl", complete=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_build_stays_within_its_memory(tmp_path: Path) -> None:
    """The limit holds even if the corpus is larger."""
    random = np.random.default_rng(0)
    words = [f"{number:x}" for number in random.integers(0, 1 << 20, 5_000)]
    with (tmp_path / "text.txt").open("w", encoding="utf-8") as text:
        for _ in range(80):
            text.write(" ".join(words[number] for number in random.zipf(1.2, 100_000).clip(max=4_999)) + "\n")
    memory = 512_000_000
    summary = build(tmp_path, "text.txt", "-o", "graph.pkl", "--memory", memory)
    layout = KeyLayout.of(4_096, 5)
    assert 2 * layout.bytes * summary["tokens"] > memory, "all keys at once would not fit"
    assert summary["peak_anon_bytes"] <= memory
