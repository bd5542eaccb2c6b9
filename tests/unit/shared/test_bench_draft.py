"""The bench of drafting: its keys are a contract, its sessions are held-out text, and its trees are comparable."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from speculant_graph._core import Calibration
from speculant_graph.bench.draft_measure import DraftPlan
from speculant_graph.bench.draft_plain import GraphTreeDrafter
from speculant_graph.bench.draft_sessions import (
    WARM_UP_ROUNDS,
    Pace,
    Turns,
    cut_sessions,
    longest_session,
    num_portions,
    take_turns,
)
from speculant_graph.cli.bench import run
from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig
from speculant_graph.draft.proposal_tree import GraphProposals, draft_tree
from speculant_graph.draft.session_drafter import DraftOrder, SessionDrafter
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Draft, Fingerprint

TIMES = {
    "tree_p50_us", "tree_p99_us", "tight_tree_p50_us", "tight_tree_p99_us", "batch_p50_us", "batch_ratio",
    "learn_us_per_token", "accept_p50_us", "tight_learn_us_per_token", "tight_accept_p50_us", "prompt_ns_per_token",
    "tight_prompt_ns_per_token", "learned_tree_p50_us", "learned_tree_p99_us", "graph_tree_p50_us",
    "graph_tree_ratio",
}  # fmt: skip
STRATEGY_KEYS = {"p50_us", "p99_us", "tight_p50_us", "tight_p99_us", "nodes"}
FINGERPRINT = Fingerprint("test", "00" * 32, 50)

WriteText = Callable[[str, int], Path]


@pytest.fixture
def write_text(tmp_path: Path) -> WriteText:
    """Return a function that writes a text of so many words."""
    words = ["the", "parties", "agree", "to", "terms", "of", "agreement", "value", "return", "sample"]

    def write(name: str, num_words: int) -> Path:
        path = tmp_path / name
        path.write_text(" ".join(random.Random(name).choices(words, k=num_words)), encoding="utf-8")
        return path

    return write


def test_bench_draft(
    write_text: WriteText, tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--held", write_text("held.txt", 4_000), "--tokenizer", tokenizer_folder, "--json"]
    options += ["--budget", 6, "--batch", 3, "--learned", 700, "--drafts", 64]
    kept = tmp_path / "kept.pkl"
    corpus = write_text("corpus.txt", 600)
    assert main(["build", str(corpus), "-o", str(kept), "--tokenizer", str(tokenizer_folder)]) == 0
    reports = []
    for source in (["--corpus", corpus], ["--graph", kept]):
        capsys.readouterr()
        assert run(["draft", *map(str, [*source, *options])]) == 0
        printed = capsys.readouterr()
        *_, last = printed.out.splitlines()
        reports.append(json.loads(last))
        assert "drafting between other work …\n" in printed.err
        assert printed.err.count("drafting by itself: ") >= 4
    report = reports[1]
    assert report.keys() >= TIMES | {"nodes", "machine"}
    assert all(report[key] > 0 for key in TIMES)
    assert (report["budget"], report["batch"], report["learned_tokens"]) == (6, 3, 700)
    assert report["command"][:3] == ["speculant", "bench", "draft"]
    assert report["by_strategy"].keys() == {"tree", "adaptive", "greedy", "sampling"}
    assert all(of.keys() == STRATEGY_KEYS for of in report["by_strategy"].values())
    assert report["by_strategy"]["tree"]["p50_us"] == report["tree_p50_us"]
    assert report["tree_p50_us"] <= report["tree_p99_us"]
    for key in ("tokens", "nodes"):
        assert reports[0][key] == report[key] > 0, "both are of the same graph"
    assert 0 < reports[0]["tree_nodes"] == report["tree_nodes"] <= 6


def test_refusals(
    write_text: WriteText, tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = str(write_text("held.txt", 300))

    def refused(kind: type[Exception], complaint: str, *arguments: object) -> None:
        with pytest.raises(kind, match=complaint) as raised:
            run(["draft", *map(str, arguments), "--tokenizer", str(tokenizer_folder)])
        assert "\n" not in str(raised.value)

    refused(ConfigError, "give either --corpus or --graph", "--held", held)
    refused(ConfigError, "give either --corpus or --graph", "--held", held, "--corpus", held, "--graph", "g.pkl")
    refused(ConfigError, "--held", "--corpus", held)
    refused(ConfigError, "--budget", "--corpus", held, "--held", held, "--budget", 2_000)
    refused(ConfigError, "-k is set by this bench itself; set --budget", "--corpus", held, "--held", held, "-k", 4)
    refused(ConfigError, "--strategy is set by this bench itself; leave it out", "--held", held, "--strategy", "tree")
    refused(ConfigError, "--corpus is there twice", "--corpus", held, "--held", held, "--corpus", held)
    refused(ConfigError, "lower the one or raise", "--corpus", held, "--held", held, "--learned", 10**6)
    refused(ConfigError, "standard input", "--corpus", held, "--held", "-")
    refused(ConfigError, "name a longer text, or lower --learned", "--corpus", held, "--held", held, "--learned", 9)
    other = tmp_path / "other.pkl"
    build_from_token_ids([1, 2, 3], FINGERPRINT).save(other)
    longer = write_text("longer.txt", 4_000)
    refused(TokenizerMismatchError, "tokenizer", "--graph", other, "--held", longer, "--learned", 9, "--drafts", 64)
    capsys.readouterr()
    assert main(["bench", "draft", "--corpus", held]) == 2, "as for every wrong setting"
    assert capsys.readouterr().err.count("\n") == 1


def test_sessions_are_pieces_of_the_text() -> None:
    text = np.arange(10_000, dtype=np.uint32)
    sessions = cut_sessions(text, 200, 30, np.random.default_rng(0))
    portions = [portion for session in sessions for portion in session.portions]
    assert len(portions) == 200 * 30
    assert {len(portion) for portion in portions} == {1, 2, 3, 4}
    for session in sessions:
        whole = [*session.prompt, *(token_id for portion in session.portions for token_id in portion)]
        assert whole == list(range(whole[0], whole[0] + len(whole)))
        assert 500 <= len(session.prompt) <= 2_000
        assert len(whole) <= longest_session(30) == 2_120
    shortest = text[: longest_session(30)]
    assert all(session.prompt[0] == 0 for session in cut_sessions(shortest, 5, 30, np.random.default_rng(0)))


class Recorder:
    """Drafts nothing much, and writes down what it was asked."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.calls: list[list[int]] = []

    def open(self, session_id: int) -> None:
        assert session_id not in self.tokens
        self.tokens[session_id] = []

    def accept(self, session_id: int, token_ids: Sequence[int]) -> None:
        self.tokens[session_id] += token_ids

    def draft(self, orders: Sequence[DraftOrder]) -> list[Draft]:
        assert all(order.node_budget == 7 for order in orders)
        self.calls.append([order.session_id for order in orders])
        return [Draft(tuple(self.tokens[order.session_id][-2:]), (0, 1)) for order in orders]


def test_turns() -> None:
    paces = [Pace(7), Pace(7, batch=4, every=8), Pace(7, every=64)]
    portions = num_portions(100, paces, 4)
    assert portions == (WARM_UP_ROUNDS + 100) // 4 + 1
    sessions = cut_sessions(np.arange(9_000, dtype=np.uint32), 4, portions, np.random.default_rng(0))
    recorders = [Recorder() for _ in paces]
    turns = [Turns(recorder, pace, sessions) for recorder, pace in zip(recorders, paces, strict=True)]
    num_works = 0

    def work() -> None:
        nonlocal num_works
        num_works += 1

    told: list[tuple[int, int]] = []
    take_turns(turns, 4, 100, work, lambda done, total: told.append((done, total)))
    assert told == [(done, 168) for done in range(1, 169)]
    single, batch, rare = recorders
    assert single.calls == [[index % 4] for index in range(WARM_UP_ROUNDS + 100)]
    assert [sorted(call) for call in batch.calls] == [[0, 1, 2, 3]] * 21
    assert rare.calls == [[0], [1], [2]]
    assert [len(turn.drafted) for turn in turns] == [100, 13, 2], "the first rounds are not timed"
    num_prompts, num_drafts, num_portions_taken = 3 * 4, 164 + 21 + 3, 164 + 4 * 21 + 3
    assert num_works == num_prompts + num_drafts + num_portions_taken, "before every timed call"
    for number, session in enumerate(sessions):
        taken = [token_id for portion in session.portions[:41] for token_id in portion]
        assert single.tokens[number] == [*session.prompt, *taken]
    assert single.tokens[3][-2:] == list(turns[0].drafted[-1][0][0]), "portions are accepted before the draft"
    assert [turn.nodes_per_draft for turn in turns] == [2.0, 2.0, 2.0]
    assert turns[0].draft_us(50) <= turns[0].draft_us(99)


def test_the_plain_trees_draft_from_the_same_graph() -> None:
    generator = random.Random(2)
    text = generator.choices(range(12), k=900)
    graph = build_from_token_ids(text, FINGERPRINT, max_order=3)
    config = DraftConfig(strategy="tree")
    fast = SessionDrafter(graph, config, calibration=Calibration())
    plain = GraphTreeDrafter(graph, config)
    prompt = generator.choices(range(12), k=60)
    for drafter in (fast, plain):
        drafter.open(1)
        drafter.accept(1, prompt)
    so_far = list(prompt)
    for _ in range(12):
        portion = generator.choices(range(14), k=3)
        so_far += portion
        drafts = []
        for drafter in (fast, plain):
            drafter.accept(1, portion)
            drafts += drafter.draft([DraftOrder(1, 9)])
        assert len(drafts[0]) == 9
        assert drafts[1] == draft_tree(GraphProposals(graph, so_far), 9, config.max_depth, 8, config.max_branches)


def test_what_is_learned_must_be_kept() -> None:
    config = DraftConfig(max_learned_tokens=1_002)
    DraftPlan(16, 32, 1_000, 64, 0, config).require_room()
    with pytest.raises(ConfigError, match="--learned 1001"):
        DraftPlan(16, 32, 1_001, 64, 0, config).require_room()
