"""A remote refusal is reported as a refusal, with its cause, and never as a missing server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from loguru import logger

from speculant_graph.cli.main import main
from speculant_graph.client import DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.types import SequenceStep
from speculant_verifier.demo.run import MODEL_FOLDER
from support.processes import Sidecar

REFUSED = {"small+small": "named twice; name every layer once", "nowhere": "name one that it serves"}
ABSENCE = ("start it", "does not answer", "no server answers", "no gRPC server")
Ask = Callable[[str, str], int]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The logged warnings."""
    found: list[str] = []
    handler = logger.add(lambda message: found.append(message.record["message"]), level="WARNING")
    logger.enable("speculant_graph")
    yield found
    logger.disable("speculant_graph")
    logger.remove(handler)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({"prompt": "def f(", "output": "x):\n    return x\n"}), encoding="utf-8")
    return path


def looped(address: str, graph: str, traces: Path) -> int:
    where = ["--client.address", address, "--client.graph", graph, "--tokenizer", str(MODEL_FOLDER)]
    return main(["bench", "engine-loop", "--traces", str(traces), "--rows", "1", "--time", "1", *where])


def examined(address: str, graph: str, _traces: Path) -> int:
    return main(["doctor", "--client.address", address, "--client.graph", graph])


@pytest.mark.parametrize("graph", REFUSED)
@pytest.mark.parametrize("ask", [looped, examined])
def test_commands(
    ask: Callable[[str, str, Path], int],
    graph: str,
    traces: Path,
    shared_sidecar: Sidecar,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert ask(shared_sidecar.address, graph, traces) != 0
    shown = "".join(capfd.readouterr())
    expected = "named twice" if "+" in graph else f"no graph {graph} is served" if ask is examined else REFUSED[graph]
    assert expected in shown
    assert not any(text in shown for text in ABSENCE)


@pytest.mark.parametrize("ask", [looped, examined])
def test_a_server_that_is_not_there_is_to_be_started(
    ask: Callable[[str, str, Path], int], traces: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(f"unix://{tmp_path}/away.sock", "", traces) != 0
    assert "start it" in "".join(capfd.readouterr())


@pytest.mark.parametrize("graph", REFUSED)
def test_a_client_whose_own_graph_is_refused_says_so_once(
    graph: str, shared_sidecar: Sidecar, lines: list[str]
) -> None:
    config = ClientConfig(address=shared_sidecar.address, graph=graph, deadline_ms=5_000)
    with DrafterClient(config, tokenizer=None, draft=DraftConfig()) as client:
        for session_id in range(3):
            client.open(session_id)
            assert client.state == "unavailable"
            assert not any(map(len, client.draft([SequenceStep(session_id, [1, 2, 3], 4)])))
        assert REFUSED[graph] in client.statistics.last_failure
    (line,) = lines
    assert REFUSED[graph] in line
    assert not any(text in line for text in ABSENCE)


def test_a_server_without_health_checks_is_another_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        address = f"unix://{tmp_path}/other.sock"
        server.add_insecure_port(address)
        server.start()
        try:
            assert main(["probe", address]) == 1
        finally:
            server.stop(None).wait()
    shown = capsys.readouterr().err
    assert "another service answers there" in shown
    assert not any(text in shown for text in ABSENCE)
