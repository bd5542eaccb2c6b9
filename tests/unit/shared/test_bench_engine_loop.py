"""The simulated engine: its loop compared with recorded outputs, its cost curves, and the command."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from speculant_graph.bench.engine_loop import run_loop
from speculant_graph.bench.texts import Trace
from speculant_graph.budget import CostCurve, PassCost
from speculant_graph.cli.bench import run
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.rows import DrafterRows
from speculant_graph.errors import ConfigError
from speculant_graph.types import Draft, PassReport, SequenceStep
from support.drafters import chain

FLAT = CostCurve((1,), (0.05,))
STEEP = CostCurve((1, 2), (0.05, 0.1))
KEYS = {
    "workload", "rows", "passes", "tokens_per_pass", "draft_ms_p50", "draft_ms_p99", "pass_ms_plain", "speedup_free",
    "speedup_paid", "neural_share", "steps_without_drafter",
}  # fmt: skip


class Reader:
    """Drafts the recorded text, with a wrong token after ``num_right`` right ones."""

    state = "ok"

    def __init__(self, traces: Sequence[Trace], num_right: int) -> None:
        self.texts = [(*trace.prompt, *trace.output) for trace in traces]
        self.num_right = num_right
        self.finished: list[int] = []

    def open(self, session_id: int, options: object) -> None: ...

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        return [self._draft(tuple(step.token_ids), step.node_budget) for step in steps]

    def _draft(self, context: tuple[int, ...], budget: int) -> Draft:
        (text,) = {text for text in self.texts if text[: len(context)] == context}
        return chain([*text[len(context) :][: self.num_right], 999][:budget])

    def observe(self, report: PassReport) -> float:
        return 0.0

    def finish(self, session_id: int) -> None:
        self.finished.append(session_id)

    def close(self) -> None: ...


def made_traces(*lengths: int) -> list[Trace]:
    generator = random.Random(0)
    return [
        Trace((index, 7, 7), tuple(generator.randrange(100) for _ in range(length)))
        for index, length in enumerate(lengths)
    ]


def sessions_of(drafter: Reader, cost: PassCost | None = None) -> EngineSessions:
    rows = DrafterRows(drafter)  # type: ignore[arg-type]
    return EngineSessions(rows, most_drafted=8, vocabulary_size=1_000, cost=cost)


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_tokens_are_those_of_plain_loops(num_right):
    traces = made_traces(41, 30, 52, 9)
    loop = run_loop(sessions_of(Reader(traces, num_right)), traces, 1, 8, FLAT, 60.0)
    passes = 0
    for trace in traces:
        position = 1
        while position < len(trace.output):
            position += 1 + num_right
            passes += 1
    assert (len(loop.pass_s), loop.num_tokens) == (passes, sum(len(trace.output) - 1 for trace in traces))
    figures = loop.figures(1, FLAT)
    assert figures["tokens_per_pass"] == figures["speedup_free"] == round(loop.num_tokens / passes, 4)
    assert figures["speedup_paid"] < figures["speedup_free"]


def test_a_pass_over_wrong_drafts_takes_longer():
    traces = made_traces(20, 20)
    loop = run_loop(sessions_of(Reader(traces, 0)), traces, 2, 8, STEEP, 60.0)
    assert loop.figures(2, STEEP)["speedup_free"] == 0.5


def test_rows_end_where_too_few_traces_are_left():
    traces = made_traces(5, 50, 5)
    drafter = Reader(traces, 0)
    loop = run_loop(sessions_of(drafter), traces, 2, 8, FLAT, 60.0)
    assert len(loop.pass_s) == 8
    assert loop.num_tokens == 16
    assert loop.figures(2, FLAT)["tokens_per_pass"] == 1.0
    assert drafter.finished == [1]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    words = ["the", "parties", "agree", "to", "terms", "of", "agreement", "value", "return", "sample"]
    text = " ".join(random.Random(3).choices(words, k=600))
    Path(tmp_path, "corpus.txt").write_text(text, encoding="utf-8")
    traces = Path(tmp_path, "traces.jsonl")
    starts = range(0, 2_000, 400)
    lines = [json.dumps({"prompt": text[at : at + 80], "output": text[at + 80 : at + 200]}) for at in starts]
    traces.write_text("\n".join(lines), encoding="utf-8")
    curve = Path(tmp_path, "curve.json")
    curve.write_text('{"tokens": [1, 8], "ms": [0.1, 0.2]}', encoding="utf-8")
    return ["--traces", str(traces), "--corpus", str(tmp_path / "corpus.txt"), "--curve", str(curve)]


def test_the_command(files: list[str], tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["engine-loop", *files, "--tokenizer", str(tokenizer_folder), "--rows", "1,3", "-k", "6", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(each["workload"], each["rows"]) for each in report["results"]] == [("traces", 1), ("traces", 3)]
    assert all(each.keys() == KEYS for each in report["results"])
    assert all(each["tokens_per_pass"] > 1.2 for each in report["results"]), "the corpus holds the outputs"
    assert [each["pass_ms_plain"] for each in report["results"]] == [0.1, 0.1286]
    assert report["is_simulated"]


def test_times_in_another_unit_are_refused(files: list[str], tokenizer_folder: Path, tmp_path: Path):
    curve = tmp_path / "us.json"
    curve.write_text('{"tokens": [1, 8], "ms": [3e6, 5e6]}', encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        run(["engine-loop", *files, "--curve", str(curve), "--tokenizer", str(tokenizer_folder), "--rows", "1"])
    assert raised.value.field == "curve"


@pytest.mark.parametrize(
    "arguments",
    [["--rows", "6"], ["--curve", "fast"], ["--client.address", "unix:///run/a.sock"], ["--rows", "0"], None],
)
def test_what_can_not_run_is_refused(files: list[str], arguments: list[str] | None, tokenizer_folder: Path):
    given = ["--traces", *files[2:]] if arguments is None else [*files, *arguments]
    with pytest.raises(ConfigError) as raised:
        run(["engine-loop", *given, "--tokenizer", str(tokenizer_folder)])
    assert "\n" not in str(raised.value)
