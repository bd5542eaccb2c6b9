"""Replays of recorded outputs: the loop, its accounting and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.bench.replay_baselines import PromptLookupDrafter
from speculant_graph.bench.replay_loop import ReplayOptions, ReplayStep, agreeing_path, replay
from speculant_graph.bench.replay_options import check_plot, parse_budgets, parse_strategies
from speculant_graph.bench.replay_plot import plot_replay, tick_labels
from speculant_graph.bench.replay_runs import compare_with_prompt_lookup
from speculant_graph.bench.replay_statistics import acceptance_by_depth, reliability, replay_figures
from speculant_graph.bench.traces import Trace, Workload
from speculant_graph.draft.cost import CostCurve
from speculant_graph.errors import ConfigError
from speculant_graph.types import EMPTY_DRAFT, Draft


@dataclass
class ScriptedDrafter:
    """Drafts what it was told to, in turns, and writes down all it hears."""

    drafts: Sequence[Draft]
    accepted: dict[int, list[int]] = field(default_factory=dict)
    recycled: list[tuple[int, int]] = field(default_factory=list)
    opened: list[tuple[bool, object]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    budgets: set[int] = field(default_factory=set)
    num_drafts: int = 0

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False, cost: CostCurve | None = None) -> None:
        self.accepted[session_id] = []
        self.opened.append((learn, cost))

    def accept(self, session_id: int, token_ids: Sequence[int]) -> None:
        self.accepted[session_id].extend(token_ids)

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        """Name the node by the token that it follows."""
        draft, known = self.drafts[(self.num_drafts - 1) % len(self.drafts)], self.accepted[session_id]
        for node, (token_id,) in zip(nodes, rows, strict=True):
            self.recycled.append((draft.token_ids[node - 1] if node else known[-1], token_id))

    def draft(self, orders: Sequence[object]) -> list[Draft]:
        self.budgets |= {order.node_budget for order in orders}  # type: ignore[attr-defined]
        self.num_drafts += 1
        return [self.drafts[(self.num_drafts - 1) % len(self.drafts)]]

    def close(self, session_id: int) -> None:
        self.closed.append(session_id)


def chain(*token_ids: int, probabilities: Sequence[float] = ()) -> Draft:
    return Draft(token_ids, tuple(range(len(token_ids))), tuple(probabilities))


def path_of(draft: Draft, node: int) -> list[int]:
    """Nodes from the root to one node, the slow way."""
    return ([] if draft.parents[node] == 0 else path_of(draft, draft.parents[node] - 1)) + [node]


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Trees over three tokens, with probabilities that fall along their paths."""
    num_nodes = draw(st.integers(0, 8))
    token_ids = draw(st.lists(st.integers(0, 2), min_size=num_nodes, max_size=num_nodes))
    parents = [draw(st.integers(0, node)) for node in range(num_nodes)]
    probabilities: list[float] = []
    for parent in parents:
        probabilities.append(draw(st.floats(0.0, 1.0)) * (probabilities[parent - 1] if parent else 1.0))
    return Draft(tuple(token_ids), tuple(parents), tuple(probabilities))


outputs = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("draft", "output", "path"),
    [
        (EMPTY_DRAFT, [1, 2], ()),
        (chain(1, 2, 3), [1, 2, 4, 5], (0, 1)),
        (chain(9, 2, 3), [1, 2, 3], ()),
        (chain(1, 2, 3), [1, 2], (0, 1)),  # the record ends within the draft
        (Draft((1, 7, 2, 3, 8), (0, 0, 1, 3, 3)), [1, 2, 3, 4], (0, 2, 3)),
        (Draft((7, 1, 2, 2), (0, 0, 1, 2)), [1, 2, 3], (1, 3)),  # what follows a wrong token is wrong
        (Draft((1, 1, 2), (0, 0, 2)), [1, 2], (1, 2)),  # of two alike, the one that leads on
    ],
)
def test_the_longest_path_that_agrees(draft: Draft, output: list[int], path: tuple[int, ...]) -> None:
    assert agreeing_path(draft, output) == path


@given(draft=drafts(), output=outputs)
def test_the_longest_path_against_all_paths(draft: Draft, output: list[int]) -> None:
    path = list(agreeing_path(draft, output))
    assert not path or path == path_of(draft, path[-1])
    assert [draft.token_ids[node] for node in path] == output[: len(path)]
    for node in range(len(draft)):
        longer = path_of(draft, node)
        if len(longer) > len(path):
            assert [draft.token_ids[node] for node in longer] != output[: len(longer)]


@given(scripted=st.lists(drafts(), min_size=1, max_size=6), texts=st.lists(outputs, min_size=1, max_size=4))
def test_every_token_is_accounted_for(scripted: list[Draft], texts: list[list[int]]) -> None:
    traces = [Trace((2, 0), tuple(text)) for text in texts]
    drafter = ScriptedDrafter(scripted)
    told: list[int] = []
    replayed = replay(drafter, traces, ReplayOptions(8, learn=True), told.append)
    assert told == [len(text) for text in texts]
    assert drafter.accepted == {number: [2, 0, *text] for number, text in enumerate(texts, start=1)}
    assert drafter.closed == list(drafter.accepted)
    assert drafter.opened == [(True, None)] * len(texts)
    assert drafter.budgets == {8}
    assert drafter.num_drafts == sum(map(len, replayed))
    pairs = [pair for text in texts for pair in zip([0, *text], text, strict=False)]
    assert drafter.recycled == pairs, "the true next token after every token"
    for steps, text in zip(replayed, texts, strict=True):
        assert sum(step.num_tokens for step in steps) == len(text)
        assert [step.num_left for step in steps] == [
            len(text) - sum(step.num_tokens for step in steps[:number]) for number in range(len(steps))
        ]
        for step in steps[:-1]:
            assert step.num_tokens == len(step.path) + 1
        assert len(steps[-1].path) <= steps[-1].num_tokens <= len(steps[-1].path) + 1


def test_what_the_drafter_is_told() -> None:
    drafter, curve = ScriptedDrafter([EMPTY_DRAFT]), CostCurve((1, 2), (1.0, 1.5))
    (steps,) = replay(drafter, [Trace((), (5, 6, 7))], ReplayOptions(3, cost=curve))
    assert drafter.opened == [(False, curve)]
    assert drafter.recycled == [], "only what learns is fed"
    assert [step.num_tokens for step in steps] == [1, 1, 1]
    with pytest.raises(AssertionError, match="over its budget"):
        replay(ScriptedDrafter([chain(1, 2)]), [Trace((), (5,))], ReplayOptions(1))


def test_figures_by_hand() -> None:
    scripted = [chain(1, 2, probabilities=(0.75, 0.25)), EMPTY_DRAFT, chain(9, probabilities=(0.5,))]
    replayed = replay(ScriptedDrafter(scripted), [Trace((0,), (1, 2, 3, 4, 5, 6))], ReplayOptions(2))
    # 1 2 agree and bring 3; nothing brings 4; 9 is wrong and 5 comes; of 1 2 nothing agrees with 6, the last token.
    figures = replay_figures(replayed, CostCurve((1, 2, 3), (1.0, 1.5, 2.0)), 0)
    assert figures["steps"] == 4
    assert figures["output_tokens"] == 6
    assert figures["mean_accepted_tokens"] == 1.5
    assert figures["mean_accepted_tokens_interval"] == [1.5, 1.5], "there is only one trace to draw"
    assert (figures["drafted"], figures["accepted"]) == (5, 2)
    assert figures["acceptance_rate"] == 0.4
    assert figures["drafted_per_step"] == 1.25
    assert figures["empty_rate"] == 0.25
    assert figures["expected_over_actual"] == 1.25  # (1 + 0.5 + 1) / 2
    assert figures["relative_speed"] == round(6 / (2.0 + 1.0 + 1.5 + 2.0), 4)
    assert figures["relative_speed_interval"] == [figures["relative_speed"]] * 2
    assert figures["acceptance_by_depth"] == [
        {"depth": 1, "share_of_steps": 0.25, "offered": 3, "accepted_of_offered": 0.3333},
        {"depth": 2, "share_of_steps": 0.25, "offered": 2, "accepted_of_offered": 0.5},
    ]
    assert figures["reliability"] == [
        {"from": 0.3, "to": 0.4, "nodes": 1, "predicted": 0.3333, "actual": 1.0},  # 2 after 1: 0.25 / 0.75
        {"from": 0.5, "to": 0.6, "nodes": 1, "predicted": 0.5, "actual": 0.0},
        {"from": 0.7, "to": 0.8, "nodes": 2, "predicted": 0.75, "actual": 0.5},
    ]


@given(scripted=st.lists(drafts(), min_size=1, max_size=6), texts=st.lists(outputs, min_size=1, max_size=4))
def test_figures_against_slow_loops(scripted: list[Draft], texts: list[list[int]]) -> None:
    curve = CostCurve((1, 2, 4, 8, 16), (1.0, 1.1, 1.5, 2.0, 3.5))
    replayed = replay(ScriptedDrafter(scripted), [Trace((), tuple(text)) for text in texts], ReplayOptions(8))
    figures = replay_figures(replayed, curve, 1)
    num_steps = drafted = accepted = empty = 0
    expected = spent = 0.0
    by_depth: dict[int, list[bool]] = {}
    judged: list[tuple[float, bool]] = []
    for text in texts:
        position = 0
        while position < len(text):
            draft = scripted[num_steps % len(scripted)]
            num_steps += 1
            rest = text[position:]
            paths = [path_of(draft, node) for node in range(len(draft))]
            agreeing = [p for p in paths if [draft.token_ids[node] for node in p] == rest[: len(p)]]
            best = max(agreeing, key=len, default=[])
            for node, path in enumerate(paths):
                by_depth.setdefault(len(path), []).append(node in best)
                if path[:-1] == best[: len(path) - 1] and len(path) <= len(rest):
                    parent = draft.path_probabilities[path[-2]] if len(path) > 1 else 1.0
                    judged.append((draft.path_probabilities[node] / parent if parent else 0.0, node in best))
            drafted += len(draft)
            accepted += len(best)
            empty += not draft.token_ids
            expected += sum(draft.path_probabilities)
            spent += curve.at(1 + len(draft))
            position += min(len(best) + 1, len(rest))
    tokens = sum(map(len, texts))
    assert figures["steps"] == num_steps
    assert figures["mean_accepted_tokens"] == pytest.approx(tokens / num_steps, abs=1e-4)
    assert figures["drafted_per_step"] == pytest.approx(drafted / num_steps, abs=1e-4)
    assert figures["empty_rate"] == pytest.approx(empty / num_steps, abs=1e-4)
    assert figures["relative_speed"] == pytest.approx(tokens * curve.at(1) / spent, abs=1e-4)
    assert figures["acceptance_rate"] == (pytest.approx(accepted / drafted, abs=1e-4) if drafted else None)
    has_ratio = drafted and accepted
    assert figures["expected_over_actual"] == (pytest.approx(expected / accepted, abs=1e-4) if has_ratio else None)
    low, high = figures["mean_accepted_tokens_interval"]  # type: ignore[misc]
    assert 1.0 <= low <= high <= max(map(len, texts))
    depths = acceptance_by_depth([step for steps in replayed for step in steps])
    assert [row["depth"] for row in depths] == sorted(by_depth)
    for row in depths:
        hits = by_depth[int(str(row["depth"]))]
        assert row["offered"] == len(hits)
        assert row["share_of_steps"] == pytest.approx(sum(hits) / num_steps, abs=1e-4)
        assert row["accepted_of_offered"] == pytest.approx(sum(hits) / len(hits), abs=1e-4)
    for row in figures["reliability"]:  # type: ignore[attr-defined]
        members = [pair for pair in judged if min(int(pair[0] * 10), 9) == round(10 * row["from"])]
        assert row["nodes"] == len(members)
        assert row["predicted"] == pytest.approx(
            sum(probability for probability, _ in members) / row["nodes"], abs=1e-4
        )
        assert row["actual"] == pytest.approx(sum(hit for _, hit in members) / row["nodes"], abs=1e-4)
    assert sum(row["nodes"] for row in figures["reliability"]) == len(judged)  # type: ignore[attr-defined]


def test_figures_of_a_strategy_without_probabilities_and_without_hits() -> None:
    figures = replay_figures([[ReplayStep((0, 1), (), (), 2, 1_000, 500)]], None, 0)
    assert figures["expected_over_actual"] is None
    assert figures["relative_speed"] is figures["relative_speed_interval"] is None
    assert figures["reliability"] == []
    assert figures["acceptance_rate"] == 0.0
    assert figures["draft_us_p50"] == figures["draft_us_p99"] == 1.0
    assert figures["learn_us_per_token"] == 0.5
    assert reliability([]) == []


def test_the_interval_holds_what_traces_vary() -> None:
    quick, slow = ReplayStep((0,) * 3, (), (0, 1, 2), 9, 1, 1), ReplayStep((), (), (), 9, 1, 1)
    figures = replay_figures([[quick]] * 20 + [[slow]] * 20, None, 0)
    low, high = figures["mean_accepted_tokens_interval"]  # type: ignore[misc]
    assert low < figures["mean_accepted_tokens"] == 2.5 < high
    assert high - low == pytest.approx(2 * 1.96 * 1.5 / 40**0.5, rel=0.15), "about that of a mean of 40 numbers"
    priced = replay_figures([[quick]] * 20 + [[slow]] * 20, CostCurve((1, 4), (1.0, 1.0)), 0)
    assert priced["relative_speed_interval"] == [low, high], "drafts are free"
    priced = replay_figures([[quick]] * 20 + [[slow]] * 20, CostCurve((1, 4), (1.0, 4.0)), 0)
    assert priced["relative_speed_interval"] == [1.0, 1.0], "the quick ones cost what they bring"


@given(token_ids=st.lists(st.integers(0, 3), max_size=40), cuts=st.integers(1, 5), budget=st.integers(1, 6))
def test_prompt_lookup_against_a_search(token_ids: list[int], cuts: int, budget: int) -> None:
    drafter = PromptLookupDrafter()
    drafter.open(7)
    for start in range(0, len(token_ids), cuts):
        drafter.accept(7, token_ids[start : start + cuts])
    expected: list[int] = []
    for length in (3, 2, 1):
        places = [p for p in range(length, len(token_ids)) if token_ids[p - length : p] == token_ids[-length:]]
        if length <= len(token_ids) and places:
            expected = token_ids[places[0] : places[0] + budget]
            break
    (draft,) = drafter.draft([SimpleNamespace(session_id=7, node_budget=budget)])  # type: ignore[list-item]
    assert list(draft.token_ids) == expected
    assert draft.is_chain
    drafter.close(7)


def test_comparison_with_prompt_lookup() -> None:
    def result(strategy: str, budget: int, mean: float) -> dict[str, object]:
        return {"workload": "chat", "strategy": strategy, "budget": budget, "mean_accepted_tokens": mean}

    results = [result("tree", 8, 3.0), result("tree", 16, 4.0), result("prompt-lookup", 8, 2.0)]
    compare_with_prompt_lookup(results)
    assert [run["over_prompt_lookup"] for run in results] == [1.5, None, 1.0]


def test_shuffling_keeps_the_tokens() -> None:
    workload = Workload("some", (Trace((1,), tuple(range(50))), Trace((2,), tuple(range(50)))))
    shuffled = workload.shuffled(4)
    assert shuffled == workload.shuffled(4) != workload.shuffled(5)
    first, second = (trace.output for trace in shuffled.traces)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    assert [trace.prompt for trace in shuffled.traces] == [(1,), (2,)]
    assert shuffled.num_tokens == 100


def test_lists_of_strategies_and_budgets() -> None:
    assert parse_strategies("tree, greedy,tree") == ["tree", "greedy"]
    assert parse_budgets("16, 8,8") == [8, 16]
    for text, complaint in (("trie", "no strategy 'trie'; choose from greedy"), ("tree,", "no strategy ''")):
        with pytest.raises(ConfigError, match=complaint):
            parse_strategies(text)
    for text, complaint in (
        ("8,x", "'x' is no whole number; write numbers such as 8,16,32"), ("", "'' is no whole number"),
        ("-3", "-3 is too small or large"), ("²", "no whole number"), ("1.5", "'1.5' is no whole number"),
        ("0", "0 is too small or large; write numbers from 1 to 2,048"), ("5000", "5000 is too small or large"),
        ("9" * 5_000, "too small or large"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=complaint):
            parse_budgets(text)


def run_of(workload: str, budget: int, mean: float, speed: float | None, strategy: str = "tree") -> dict[str, object]:
    return {
        "workload": workload, "strategy": strategy, "budget": budget, "traces": 3,
        "mean_accepted_tokens": mean, "mean_accepted_tokens_interval": [mean + 0.1, mean + 0.2],
        "relative_speed": speed, "relative_speed_interval": None if speed is None else [speed - 0.1, speed + 0.1],
    }  # fmt: skip


def test_a_picture_of_many_workloads(tmp_path: Path) -> None:
    plot_replay([run_of(f"w$_{number}", 8, 2.0, None) for number in range(5)], tmp_path / "a.png", "png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_picture_says(tmp_path: Path) -> None:
    def texts(*results: dict[str, object]) -> str:
        plot_replay(results, tmp_path / "a.svg", "svg")
        return (tmp_path / "a.svg").read_text(encoding="utf-8")

    tokens = texts(run_of("chat", 8, 2.0, None), run_of("chat", 24, 2.5, None))
    assert ">tokens per step<" in tokens
    assert ">chat (3 traces)<" in tokens
    assert ">8<" in tokens
    assert ">24<" in tokens, "ticks are the budgets"
    assert "relative speed" not in tokens
    assert ">relative speed<" in texts(run_of("chat", 8, 2.0, 1.2), run_of("chat", 24, 2.5, 0.9))
    alike = texts(run_of("chat", 8, 2.0, None), run_of("legal", 8, 2.5, None))
    unlike = texts(run_of("chat", 8, 1.2, None), run_of("legal", 8, 9.5, None))
    assert ["scale of its own" in text for text in (alike, unlike)] == [False, True]


def test_labels_of_budgets_that_are_close() -> None:
    assert tick_labels([8]) == ["8"]
    assert tick_labels([8, 16, 32]) == ["8", "16", "32"]
    assert tick_labels([1, 16, 17, 18, 1_024]) == ["1", "16", "", "", "1024"]


def test_pictures_that_can_not_be_written(tmp_path: Path) -> None:
    check_plot(tmp_path / "a.PNG")
    assert list(tmp_path.iterdir()) == [], "trying leaves nothing"
    (tmp_path / "folder.png").mkdir()
    for path, complaint in (
        (tmp_path, r"is a folder; name a file in it, such as .*picture\.png$"),
        (tmp_path / "folder.png", "is a folder; name a file"),
        (tmp_path / "a.gif", r"ends in none of \.png, \.svg; choose one"),
        (
            tmp_path / "no" / "a.png",
            r"can't write to the folder .*/no \(No such file.*; make it or choose another path",
        ),
        (Path("/proc/a.png"), "can't write to the folder /proc"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            check_plot(path)
