"""The command that replays recorded outputs: its input, output and errors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.bench.texts import read_workloads
from speculant_graph.cli.bench import run
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from support.oracle import OracleGraph

RESULT_KEYS = {
    "workload", "strategy", "budget", "mean_accepted_tokens", "acceptance_rate", "drafted_per_step", "empty_rate",
    "expected_over_actual", "draft_us_p50", "draft_us_p99", "relative_speed", "relative_speed_interval",
}  # fmt: skip

Bench = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> CorpusTokenizer:
    return CorpusTokenizer.load(tokenizer_folder)


def test_reading_traces(tokenizer: CorpusTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    lines = [
        {"id": "1", "prompt": "the terms", "output": " of the agreement<|endoftext|>", "workload": "legal"},
        {"prompt": "", "output": "é"},
        {"prompt": "nothing was said", "output": ""},
        {"prompt": "more", "output": "more"},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    path.write_text(text, encoding="utf-8")
    (workload,) = read_workloads([path], tokenizer)
    assert workload.name == "legal"
    assert [tokenizer.decode(trace.output) for trace in workload.traces] == [lines[0]["output"], "é", "more"]
    assert workload.traces[0].prompt == tuple(tokenizer.encode("the terms"))
    assert tokenizer.eos_id not in workload.traces[0].output, "text of special tokens is text"
    path.write_text(text.replace('"workload"', '"other"') + "\nno JSON", encoding="utf-8")
    (workload,) = read_workloads([path], tokenizer, limit=4)
    assert (workload.name, len(workload.traces)) == ("answers", 3), "lines beyond the limit are not looked at"
    with pytest.raises(CorpusError) as caught:
        read_workloads([path], tokenizer)
    assert "answers.jsonl:8" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        read_workloads([path, path], tokenizer, limit=1)
    assert caught.value.field == "workload"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'\n{"prompt": "a", "output": ""}\n', r"bad\.jsonl: holds no trace with an output; give"),
        (b'{"prompt": "a", "output": "\xff"}', r"bad\.jsonl:1: invalid JSON"),
        (b'{"prompt": "a", "output": "b"}\n{"prompt": "a"}', r"bad\.jsonl:2: 'output' is missing; give"),
        (b'{"prompt": "a", "output": "b", "workload": "\\u001b[1m"}', r"bad\.jsonl: .*control characters; rename"),
    ],
)
def test_files_that_are_no_traces(content: bytes, message: str, tokenizer: CorpusTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    # Promised behaviour: the message names the file, the line and the error.
    with pytest.raises(CorpusError, match=message) as raised:
        read_workloads([path], tokenizer)
    assert "\n" not in str(raised.value)
    with pytest.raises(CorpusError):
        read_workloads([tmp_path / "missing.jsonl"], tokenizer)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    words = ["the", "parties", "agree", "to", "terms", "of", "agreement", "value", "return", "sample"]
    path = tmp_path / "corpus.txt"
    path.write_text(" ".join(random.Random(3).choices(words, k=600)), encoding="utf-8")
    return path


@pytest.fixture
def traces(tmp_path: Path, corpus: Path) -> Path:
    """Three outputs from the corpus, and one that is not in it."""
    text = corpus.read_text(encoding="utf-8")
    path = tmp_path / "traces.jsonl"
    pieces = [(text[start : start + 80], text[start + 80 : start + 200]) for start in (0, 700, 1_500)]
    lines = [{"prompt": prompt, "output": output} for prompt, output in [*pieces, ("a value", " xyz quip xyz quip")]]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], tokenizer_folder: Path) -> Bench:
    """Run the benchmark; return the JSON object in its last line, plus the rest of its output."""

    def run_bench(*arguments: object) -> dict[str, Any]:
        assert run(["replay", *map(str, arguments), "--tokenizer", str(tokenizer_folder), "--json"]) == 0
        printed = capsys.readouterr()
        *lines, last = printed.out.splitlines()
        return {**json.loads(last), "printed": "\n".join(lines), "told": printed.err}

    return run_bench


def test_replaying_from_a_corpus(bench: Bench, corpus: Path, traces: Path, tokenizer: CorpusTokenizer) -> None:
    options = ("--corpus", corpus, "--traces", traces, "--max-order", 3)
    report = bench(*options, "--strategy", "greedy,prompt-lookup", "--budget", "4,2")
    assert report.keys() >= {"results", "machine", "command"}
    results = report["results"]
    assert all(result.keys() >= RESULT_KEYS for result in results)
    runs = [(result["workload"], result["strategy"], result["budget"]) for result in results]
    assert runs == [("traces", strategy, budget) for strategy in ("greedy", "prompt-lookup") for budget in (2, 4)]
    assert all(result["relative_speed"] is None for result in results)
    assert results[0]["over_prompt_lookup"] > results[2]["over_prompt_lookup"] == 1.0
    # The oracle, made of dictionaries and plain loops, gives the same replay.
    text = [tokenizer.bos_id, *tokenizer.encode(corpus.read_text(encoding="utf-8")), tokenizer.eos_id]
    oracle = OracleGraph([text], 3)  # type: ignore[list-item]
    (workload,) = read_workloads([traces], tokenizer)
    num_tokens = sum(len(trace.output) for trace in workload.traces)
    for result, budget in zip(results[:2], (2, 4), strict=True):
        num_steps = 0
        for trace in workload.traces:
            position = 0
            while position < len(trace.output):
                drafted, _ = oracle.draft(trace.prompt + trace.output[:position], budget, "greedy")
                rest = trace.output[position:]
                agreeing = [n for n in range(len(drafted) + 1) if tuple(drafted[:n]) == rest[:n]]
                position += max(agreeing) + 1
                num_steps += 1
        assert (result["steps"], result["output_tokens"]) == (num_steps, num_tokens)
        assert result["mean_accepted_tokens"] == round(num_tokens / num_steps, 4)
    assert "lookup" in report["printed"]
    assert "relative" not in report["printed"], "no column without a figure"
    phases = ("reading the tokenizer", "tokenising the traces", "building a graph", "traces, greedy, 4 nodes")
    positions = [report["told"].index(phase) for phase in phases]
    assert positions == sorted(positions)


def test_replaying_online(bench: Bench, tmp_path: Path) -> None:
    output = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=150))
    path = tmp_path / "twice.jsonl"
    lines = [json.dumps({"prompt": prompt, "output": output}) + "\n" for prompt in ("the terms", "a value")]
    path.write_text("".join(lines), encoding="utf-8")
    options = ("--traces", path, "--strategy", "tree", "--budget", 8)
    online, alone = bench(*options, "--online"), bench(*options)
    assert (online["online"], alone["online"]) == (True, False)
    assert online["results"][0]["steps"] < 0.75 * alone["results"][0]["steps"], "the second time the output is known"
