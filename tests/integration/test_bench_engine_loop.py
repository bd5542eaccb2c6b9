"""The simulated engine with a sidecar: text learned in one run must not speed up the next."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.bench import engine_loop
from speculant_graph.cli.main import main
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.run import MODEL_FOLDER
from support.processes import Sidecar, start_sidecar


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    words = random.Random(3)
    texts = ["".join(words.choices("abcdefgh ", k=160)) for _ in range(4)]
    path = tmp_path / "traces.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": each[:40], "output": each[40:]}) for each in texts), "utf-8")
    return ["bench", "engine-loop", "--traces", str(path), "--tokenizer", str(MODEL_FOLDER), "--rows", "1,2", "--json"]


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    corpus, graph = tmp_path / "corpus.txt", tmp_path / "graph.pkl"
    corpus.write_text("hgfedcba " * 20, "utf-8")
    GraphBuilder(tokenizer_name=str(MODEL_FOLDER), neural=False).build([corpus], graph)
    sidecar = start_sidecar(graph, tmp_path / "drafter.sock")
    yield sidecar
    sidecar.stop()


def results(capfd: pytest.CaptureFixture[str]) -> list[dict[str, float]]:
    return json.loads(capfd.readouterr().out.splitlines()[-1])["results"]


def test_runs_learn_nothing_from_each_other(
    arguments: list[str], sidecar: Sidecar, capfd: pytest.CaptureFixture[str]
) -> None:
    known = [*arguments, "--client.address", sidecar.address, "--client.deadline-ms", "5000"]
    for _ in range(2):
        assert main(known) == 0
        first, second = results(capfd)
        assert max(first["tokens_per_pass"], second["tokens_per_pass"]) < 1.5, "random letters"
        assert first["steps_without_drafter"] == second["steps_without_drafter"] == 0
    for _ in range(2):
        assert main([*known, "--client.tenant", "mine"]) == 0
    assert results(capfd)[0]["tokens_per_pass"] > first["tokens_per_pass"], "a tenant that is named knows the traces"


def test_figures_of_finished_rows_are_printed_when_the_sidecar_dies(
    arguments: list[str],
    sidecar: Sidecar,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = engine_loop.run_loop

    def decode_and_kill(*given: Any) -> engine_loop.LoopTimes:
        loop = decode(*given)
        sidecar.process.kill()
        sidecar.wait()
        return loop

    monkeypatch.setattr(engine_loop, "run_loop", decode_and_kill)
    assert main([*arguments, "--client.address", sidecar.address]) == 1
    assert [each["rows"] for each in results(capfd)] == [1]


def test_figures_of_finished_rows_are_printed_when_the_user_interrupts(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = engine_loop.run_loop, iter([False, True])

    def interrupted(*given: Any) -> engine_loop.LoopTimes:
        if next(calls):
            raise KeyboardInterrupt
        return decode(*given)

    monkeypatch.setattr(engine_loop, "run_loop", interrupted)
    assert main(arguments) != 0
    assert [each["rows"] for each in results(capfd)] == [1]


def test_a_sidecar_that_dies_costs_no_figures(
    arguments: list[str],
    sidecar: Sidecar,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = engine_loop.run_loop

    def kill_and_decode(*given: Any) -> engine_loop.LoopTimes:
        sidecar.process.kill()
        sidecar.wait()
        return decode(*given)

    monkeypatch.setattr(engine_loop, "run_loop", kill_and_decode)
    rows = ["1" if each == "1,2" else each for each in arguments]
    assert main([*rows, "--client.address", sidecar.address]) == 0
    [figures] = results(capfd)
    assert figures["steps_without_drafter"] > 0
