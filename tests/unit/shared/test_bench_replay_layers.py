"""Traffic over time: the effect of learning and folding in each time slice, and its plot."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.bench.curves import Curve, Panel, drawn
from speculant_graph.cli.bench import run
from speculant_graph.errors import ConfigError
from support.learned import fold_here

Bench = Callable[..., dict[str, Any]]
NUM_TRACES, NUM_SLICES = 24, 4


def written(path: Path, seed: int) -> Path:
    """Write traces in which every answer recurs long after its first occurrence."""
    chance = random.Random(seed)
    answers = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=120)) for _ in range(NUM_TRACES // 2)]
    lines = [json.dumps({"prompt": f"number {index}", "output": answers[index % len(answers)]}) for index in range(24)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run the benchmark with immediate folds; return the JSON object in its last line."""
    fold_here(monkeypatch)

    def run_bench(*arguments: object) -> dict[str, Any]:
        assert run(["replay", *map(str, arguments), "--tokenizer", str(tokenizer_folder), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    return run_bench


def test_each_way_is_what_it_says(bench: Bench, tmp_path: Path) -> None:
    traces = written(tmp_path / "one.jsonl", 1)
    layered = ("--online", "--layers", "--traces", traces, "--slices", NUM_SLICES)
    spacious, tight = (bench(*layered, "--fold.young-tokens", young) for young in (100_000, 200))
    alone = ("--traces", traces, "--strategy", "tree", "--budget", 16)
    (plain,), (online,) = (bench(*alone, *more)["results"] for more in ((), ("--online",)))
    for report in (spacious, tight):
        assert [each["slice"] for each in report["results"]] == [1, 2, 3, 4]
        assert sum(each["output_tokens"] for each in report["results"]) == plain["output_tokens"]
        assert report["workloads"][0]["static"] == plain["mean_accepted_tokens"]
        assert not report["failed_folds"]
    (summary,) = spacious["workloads"]
    assert summary["learning"] == summary["folding"] == online["mean_accepted_tokens"], "nothing is old"
    assert not spacious["folds"]
    assert tight["folds"] > 2
    assert [each["graph_tokens"] for each in tight["results"]] == sorted(
        each["graph_tokens"] for each in tight["results"]
    )
    last = tight["results"][-1]
    assert last["folding"] > 1.5 * last["learning"], "the answers were folded, and forgotten by the other"
    assert bench(*layered, "--fold.young-tokens", 200)["results"] == tight["results"], "the same every time"
    assert bench(*layered, "--max-learned-tokens", 200)["young_tokens"] == 200


def test_every_file_is_a_tenant(bench: Bench, tmp_path: Path) -> None:
    files = [written(tmp_path / f"{name}.jsonl", 1) for name in ("one", "two")]
    picture = tmp_path / "curves.svg"
    report = bench("--online", "--layers", "--traces", *files, "--slices", NUM_SLICES, "--picture", picture)
    order = [(each["workload"], each["slice"]) for each in report["results"]]
    assert order == [(name, number) for number in range(1, 1 + NUM_SLICES) for name in ("one", "two")]
    one, two = report["results"][:2]
    assert two["learning"] < 1.3 * two["static"], "it is all in the other's text"
    assert one["output_tokens"] == two["output_tokens"]
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert len(root.findall("{*}polyline")) == 6
    texts = {each.text for each in root.findall("{*}text")}
    assert texts >= {"one", "two", "slice", "tokens a step", "older text folded into graphs"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--layers"],
        ["--online", "--layers", "--slices", "25"],
        ["--online", "--layers", "--strategy", "tree,adaptive"],
        ["--online", "--layers", "--strategy", "prompt-lookup"],
        ["--online", "--layers", "--budget", "8,16"],
        ["--online", "--layers", "--cost", "dense"],
        ["--online", "--layers", "--max-learned-tokens", "0"],
        ["--online", "--picture", "a.svg"],
        ["--online", "--slices", "4"],
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], tmp_path: Path, tokenizer_folder: Path) -> None:
    traces = written(tmp_path / "one.jsonl", 1)
    with pytest.raises(ConfigError) as caught:
        run(["replay", "--traces", str(traces), "--tokenizer", str(tokenizer_folder), *arguments])
    assert "\n" not in str(caught.value)


@given(
    values=st.lists(st.lists(st.floats(0.5, 90.0), min_size=3, max_size=3), min_size=1, max_size=30),
    titles=st.lists(st.text("<&a\"'é", max_size=9), min_size=1, max_size=5),
)
def test_curves_stay_within_their_panels(values: list[list[float]], titles: list[str]) -> None:
    curves = [Curve(f"<{index}>", [each[index] for each in values]) for index in range(3)]
    root = ElementTree.fromstring(drawn([Panel(title, curves) for title in titles], across="week", up="tokens & steps"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    lines = root.findall("{*}polyline")
    assert len(lines) == 3 * len(titles)
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert len(points) == len(values)
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        assert [x for x, _ in points] == sorted(x for x, _ in points)
    first = [float(line.attrib["points"].split()[0].split(",")[1]) for line in lines[:3]]
    for a in range(3):
        for b in range(3):
            if values[0][a] > values[0][b]:
                assert first[a] <= first[b], "more is higher"
