"""``speculant build --ray`` gives the same graph as on one machine, even if workers fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.graph.build.on_ray import workers_on_ray
from speculant_verifier.demo.run import MODEL_FOLDER

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"SOURCE_DATE_EPOCH": "1", "PYTHONPATH": str(TESTS), "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    texts = [f"The parties {number} agree to clause {number % 17} of the terms.\n" for number in range(3000)]
    (folder / "large.txt").write_text("".join(texts), "utf-8")
    (folder / "many.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:800]), "utf-8")
    for number in range(5):
        (folder / f"small-{number}.txt").write_text("".join(texts[number * 9 : number * 9 + 7]), "utf-8")
    (folder / "other.txt").write_bytes(
        "Soweit nicht anders vereinbart, trägt der Käufer die Kosten für Öl.\n".encode("cp1252")
    )
    return folder


def start(mode: str, corpus: str | Path, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "support.ray_build", mode, str(corpus), str(output)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=output.parent
    )


@pytest.mark.parametrize(
    ("mode", "scheme"),
    [("plain", ""), ("kill encode_task", ""), ("kill count_task", ""), ("kill encode_task", "file://")],
)
def test_a_build_on_a_cluster_is_that_of_one_machine(
    tmp_path: Path, corpus: Path, mode: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    text = f"{scheme}{corpus}"
    GraphBuilder(MODEL_FOLDER, document_boundaries=True).build(text, tmp_path / "here.pkl")
    shown, problems = start(mode, text, tmp_path / "there.pkl").communicate(timeout=300)
    assert (tmp_path / "there.pkl").exists(), shown + problems
    assert (tmp_path / "there.pkl").read_bytes() == (tmp_path / "here.pkl").read_bytes(), "calibration and model, too"
    assert ("killed" in shown) == mode.startswith("kill")
    assert shown.count("tokenize") > 5


def test_another_release_on_a_worker_is_one_line(tmp_path: Path, corpus: Path) -> None:
    shown, _ = start("version", corpus, tmp_path / "there.pkl").communicate(timeout=300)
    assert shown.splitlines()[-1].startswith("ConfigError: a worker has speculant-graph ")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, corpus: Path) -> None:
    process = start("wait", corpus, tmp_path / "there.pkl")
    assert process.stdout is not None
    for line in process.stdout:
        if line == "working\n":
            break
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode
    assert list(tmp_path.iterdir()) == []
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def test_no_cluster_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught, workers_on_ray("127.0.0.1:1"):
        pass
    assert "127.0.0.1:1" in caught.value.message
