"""Outputs of vLLM's V2 runner with and without drafts, on a CPU in Triton's interpreter, asynchronously scheduled."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chi2_contingency

from speculant_verifier.demo.corpus import beginnings
from support.real_engines import installed, v2_environment

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1_800)]

_PROGRAM = Path(__file__).parents[1] / "support" / "vllm_v2_runs.py"


@pytest.fixture
def write(checkpoint: Path, graph: Path, tmp_path: Path) -> Any:
    """Return a function that runs a scenario in a separate process, with or without drafts."""
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(beginnings(24)))

    def run(scenario: str, settings: dict[str, Any] | None) -> dict[str, Any]:
        output = tmp_path / "output.json"
        given = [] if settings is None else [json.dumps(settings)]
        command = [installed("vllm/bin/python"), _PROGRAM, checkpoint, prompts, scenario, output]
        process = subprocess.run(
            [*map(str, command), *given], cwd=tmp_path, env={**os.environ, **v2_environment()}, capture_output=True,
            text=True, timeout=900, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr[-3_000:]
        answer: dict[str, Any] = json.loads(output.read_text())
        assert answer["runner"] == {"is_v2": True, "is_asynchronous": True}
        return answer

    def both(scenario: str) -> tuple[dict[str, Any], dict[str, Any]]:
        plain, drafted = run(scenario, None), run(scenario, {"graph_path": str(graph)})
        assert drafted["metrics"]["spec_decode_num_accepted_tokens"] > 0
        return plain, drafted

    run.both = both
    return run


@pytest.mark.parametrize("scenario", ["one", "eight", "chunks", "preempted", "come_and_go", "structured"])
def test_drafts_change_no_token(write: Any, scenario: str) -> None:
    plain, drafted = write.both(scenario)
    assert len(plain["ids"]) >= 3
    assert drafted["ids"] == plain["ids"]
    if scenario == "preempted":
        assert drafted["metrics"]["num_preemptions"] > 0


def test_drafts_change_no_distribution(write: Any) -> None:
    plain, drafted = write.both("sampled")
    for position in range(3):
        counts = [Counter(ids[position] for ids in each["ids"].values()) for each in (plain, drafted)]
        assert len(counts[0]) > 2
        assert _p_of_one_distribution(*counts) > 1e-3
        # Control: half of one token's samples are moved to another token.
        (most, number), (other, _), *_ = counts[1].most_common()
        counts[1].update({most: -number // 2, other: number // 2})
        assert _p_of_one_distribution(*counts) < 1e-3


def _p_of_one_distribution(first: Counter[int], second: Counter[int]) -> float:
    tokens = sorted(first.keys() | second.keys())
    rare = [token for token in tokens if first[token] + second[token] < 10]
    cells = [[token] for token in tokens if token not in rare] + ([rare] if rare else [])
    table = [[sum(counts[token] for token in cell) for cell in cells] for counts in (first, second)]
    return float(chi2_contingency(table).pvalue)


def test_requests_name_their_tenants(write: Any) -> None:
    written = write("tenants", {"draft": {"sources": ["learned"]}})["ids"]
    first, again, other, once_more = written.values()
    assert first[1:] == again[1:] == other[1:]
    assert other[0] < again[0]
    assert once_more[0] >= again[0]


@pytest.mark.parametrize(
    ("runner", "environment"),
    [("V1", None), ("V2", {}), ("V1", {"VLLM_PLUGINS": "other"}), ("V1", {"VLLM_USE_V2_MODEL_RUNNER": "0"})],
)
def test_doctor_says_which_runner_it_is(runner: str, environment: dict[str, str] | None) -> None:
    environment = {} if environment is None else v2_environment() | environment
    process = subprocess.run(
        [str(installed("vllm/bin/speculant")), "doctor", "--vllm", "--json"], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    [check] = [each for each in json.loads(process.stdout)["checks"] if each["check"] == "vllm"]
    assert f"its {runner} model runner" in check["detail"]
    assert check["status"] == ("ok" if runner == "V2" else "warn")
    assert bool(check["fix"]) is (runner == "V1")


def test_names_that_moved_inside_vllm_cost_drafts_and_one_warning(
    checkpoint: Path, graph: Path, tmp_path: Path
) -> None:
    """An attribute of the batch that the adapter reads is missing, as if a later vLLM had renamed it."""
    hidden = tmp_path / "hidden.py"
    hidden.write_text(
        "import runpy, sys\n"
        "import speculant_graph.engines.vllm_v2 as adapter\n"
        "known = adapter.Speculator._draft\n"
        "class Batch:\n"
        "    def __init__(self, batch): self._batch = batch\n"
        "    def __getattr__(self, name):\n"
        "        if name == 'is_prefilling_np': raise AttributeError(name)\n"
        "        return getattr(self._batch, name)\n"
        "adapter.Speculator._draft = lambda self, batch, *more: known(self, Batch(batch), *more)\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    prompts, outputs = tmp_path / "prompts.json", []
    prompts.write_text(json.dumps(beginnings(24)))
    for settings in ([], [json.dumps({"graph_path": str(graph)})]):
        output = tmp_path / "output.json"
        command = [installed("vllm/bin/python"), hidden, _PROGRAM, checkpoint, prompts, "one", output, *settings]
        process = subprocess.run(
            [*map(str, command)], env={**os.environ, **v2_environment()}, capture_output=True, text=True, timeout=900,
            check=True,
        )  # fmt: skip
        outputs.append(json.loads(output.read_text())["ids"])
        assert process.stderr.count("no drafts") == len(settings)
    assert outputs[0] == outputs[1]
