"""The verifier's benchmarks as commands, on the demo model and on random ones: figures, files and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.budget import CostCurve
from speculant_graph.cli.main import main
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.run import MODEL_FOLDER

MODEL = ["--model", str(MODEL_FOLDER), "--device", "cpu", "--num-threads", "1"]
RANDOM = ["--model", "random:1M", "--tokenizer", str(MODEL_FOLDER), "--device", "cpu", "--num-threads", "1"]
GENERATE_KEYS = {
    "identical", "plain_tokens_per_s", "speculative_tokens_per_s", "speedup", "prompt_lookup_tokens_per_s",
    "mean_accepted_tokens", "acceptance_rate", "steps", "ttft_ms", "itl_ms_p50", "itl_ms_p99",
    "phase_ms", "transformers_tokens_per_s",
}  # fmt: skip
PHASES = {"draft", "forward", "verify", "commit", "other"}

Bench = Callable[..., dict[str, Any]]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    """Run a benchmark and return its JSON object."""

    def run(*arguments: object) -> dict[str, Any]:
        command = ["bench", *map(str, arguments), "--json"]
        assert main(command) == 0
        figures: dict[str, Any] = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
        assert figures["command"] == ["speculant", *command]
        assert figures["machine"].keys() >= {"cpu", "cores", "libraries"}
        return figures

    return run


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two repetitive workloads; the second is longer than the sliding window."""
    folder = tmp_path_factory.mktemp("traces")
    text = "def echo(self, value):\n    return value\n"
    for name, prompt in (("short", text), ("long", text * 8)):
        lines = [{"id": str(n), "workload": name, "prompt": f"# {n}\n{prompt}", "output": text * 3} for n in range(2)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return sorted(folder.iterdir(), reverse=True)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("def loads(s):\n\nclass Semaphore:\n", encoding="utf-8")
    return path


def test_costs_as_figures_and_curve(bench: Bench, tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    figures = bench(
        "verify-cost", *RANDOM, "--batch", "2,1", "--tokens", "4,2", "--context", 20, "--time", 60, "-o", curve
    )
    points = {(point["batch"], point["nodes"]): point for point in figures["points"]}
    assert points.keys() == {(batch, nodes) for batch in (1, 2) for nodes in (1, 2, 4)}
    assert all(point["ms"] > 0 and point["relative"] >= 1 for point in points.values())
    assert (figures["device"], figures["model"], figures["context"]) == ("cpu", "random:1M", 20)
    read = CostCurve.from_file(curve)
    assert read.tokens == (1, 2, 4)
    assert read.relative(4) == pytest.approx(points[2, 4]["relative"], abs=1e-3), "that of the batch named first"


def test_ways_of_decoding_prompts(bench: Bench, prompts: Path) -> None:
    figures = bench("generate", *MODEL, "--prompts", prompts, "--max-tokens", 8, "-k", 4)
    assert figures.keys() >= GENERATE_KEYS
    assert figures["identical"]
    assert all(figures["identical_by_way"].values())
    assert figures["identical_by_way"].keys() == {"plain", "speculative", "transformers", "prompt_lookup"}
    assert figures["phase_ms"].keys() == PHASES
    assert figures["steps"] == figures["tokens"] - round(
        figures["acceptance_rate"] * figures["drafted_per_step"] * figures["steps"]
    )


def test_replaying_workloads(bench: Bench, traces: list[Path], tmp_path: Path) -> None:
    corpus, graph = tmp_path / "corpus.txt", tmp_path / "graph.pkl"
    corpus.write_text("def echo(self, value):\n    return value\n" * 5, encoding="utf-8")
    GraphBuilder(tokenizer_name=str(MODEL_FOLDER)).build([corpus], graph)
    figures = bench("generate", *RANDOM, "--replay", *traces, "--graph", graph, "--max-tokens", 24, "--limit", 2)
    assert figures.keys() >= GENERATE_KEYS
    assert figures["identical"]
    assert [group["workload"] for group in figures["workloads"]] == ["short", "long"]
    for group in figures["workloads"]:
        assert (group["requests"], group["tokens"]) == (2, 48)
        assert group["mean_accepted_tokens"] > 1.5
        assert group["prompt_lookup_mean_accepted_tokens"] > 1.5
    assert figures["tokens"] == sum(group["tokens"] for group in figures["workloads"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["--nodes", "8,0"], "nodes"),
        (["--size", "90MB"], "--ram-budget"),
        (["--ram-budget", "90MB"], "--ram-budget"),
        (["--draft-model", "./there-is-none"], "draft_model.name"),
    ],
)
def test_weights_are_written_only_for_a_plan_that_can_be_measured(
    arguments: list[str], setting: str, traces: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    known = ["--replay", str(traces[0]), "--tokenizer", str(MODEL_FOLDER)]
    assert main(["bench", "offload", *known, *arguments]) == 2
    said = capfd.readouterr().err  # of its processes, too
    assert setting in said
    assert "random weights" not in said


@pytest.mark.slow
def test_answers_of_a_form_and_a_second_call(bench: Bench) -> None:
    model = ["--verifier.model-name", MODEL_FOLDER]
    figures = bench("structured", *model, "--records", 2, "--batch", 2, "--nodes", 6, "--conversation", 200)
    assert figures["identical"]
    assert figures["valid_share"] == 1.0
    assert figures["tokens_per_pass_with"] > figures["tokens_per_pass_without"] >= 1.0
    assert figures["second_call_identical"]
    assert min(figures[key] for key in ("second_call_s", "mask_us_p50", "asked_us_p50", "pass_ms")) > 0


@pytest.mark.slow
def test_a_draft_model_beside_ngrams(bench: Bench) -> None:
    figures = bench("adapter", "--limit", 1, "--max-tokens", 8)
    assert figures["identical"]
    assert len(figures["kinds"]) == 3
    assert min(figures[f"{way}_tokens_per_s"] for way in ("tree", "model", "tree_with_model")) > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["verify-cost", "--model", "random:huge", "--tokenizer", "x"], "'huge' is not the size of a random model"),
        (["verify-cost", *RANDOM, "--batch", "[]"], "batch: is empty"),
        (["verify-cost", *RANDOM, "--output", "."], "is a folder"),
        (["verify-cost", *RANDOM, "--output", "there-is-none/curve.json"], "can't be written"),
        (["generate", *RANDOM], "name what to decode: one of --prompts FILE and --replay TRACES"),
        (["generate", *RANDOM, "--prompts", "there-is-none"], "can't read the prompts in 'there-is-none'"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) in {1, 2}
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("speculant:")]
    assert complaint in line


@pytest.mark.slow
def test_a_model_larger_than_memory(bench: Bench, traces: list[Path]) -> None:
    figures = bench(
        "offload", "--replay", traces[0], "--tokenizer", MODEL_FOLDER, "--size", "500MB", "--ram-budget", "900MB",
        "--nodes", "8", "--limit", "1", "--max-tokens", "16",
    )  # fmt: skip
    assert figures["identical"] is True
    assert figures["peak_bytes"] < 1.1 * figures["budget_bytes"]
    assert [each["nodes"] for each in figures["results"]] == [0, 8]
    assert figures["results"][0]["tokens_per_pass"] == 1.0 < figures["results"][1]["tokens_per_pass"]
    assert min(figures[key] for key in ("plain_tokens_per_s", "accelerate_tokens_per_s", "stream_pass_ms")) > 0
    assert min(figures[key] for key in ("start_s", "first_token_s", "later_first_token_s")) > 0
