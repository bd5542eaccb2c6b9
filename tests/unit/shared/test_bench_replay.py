"""Replay of recorded outputs: the loop, its counts and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.bench.replaying import PromptLookupDrafter, ReplayStep, replay, replay_figures
from speculant_graph.bench.texts import Trace
from speculant_graph.budget import CostCurve
from speculant_graph.types import Draft


@dataclass
class ScriptedDrafter:
    """Returns the given drafts in turn, and records its calls."""

    drafts: Sequence[Draft]
    accepted: dict[int, list[int]] = field(default_factory=dict)
    recycled: list[tuple[int, int]] = field(default_factory=list)
    opened: list[bool] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    num_drafts: int = 0

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False) -> None:
        self.accepted[session_id] = []
        self.opened.append(learn)

    def accept(self, session_id: int, token_ids: Sequence[int]) -> None:
        self.accepted[session_id].extend(token_ids)

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        """Record each row's token with the token that it follows."""
        draft, known = self.drafts[(self.num_drafts - 1) % len(self.drafts)], self.accepted[session_id]
        for node, (token_id,) in zip(nodes, rows, strict=True):
            self.recycled.append((draft.token_ids[node - 1] if node else known[-1], token_id))

    def draft(self, orders: Sequence[object]) -> list[Draft]:
        self.num_drafts += 1
        return [self.drafts[(self.num_drafts - 1) % len(self.drafts)]]

    def close(self, session_id: int) -> None:
        self.closed.append(session_id)


def path_of(draft: Draft, node: int) -> list[int]:
    """Return the nodes from the root to a node, by recursion."""
    return ([] if draft.parents[node] == 0 else path_of(draft, draft.parents[node] - 1)) + [node]


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Trees over three tokens; probabilities never rise along a path."""
    num_nodes = draw(st.integers(0, 8))
    token_ids = draw(st.lists(st.integers(0, 2), min_size=num_nodes, max_size=num_nodes))
    parents = [draw(st.integers(0, node)) for node in range(num_nodes)]
    probabilities: list[float] = []
    for parent in parents:
        probabilities.append(draw(st.floats(0.0, 1.0)) * (probabilities[parent - 1] if parent else 1.0))
    return Draft(tuple(token_ids), tuple(parents), tuple(probabilities))


outputs = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@given(scripted=st.lists(drafts(), min_size=1, max_size=6), texts=st.lists(outputs, min_size=1, max_size=4))
def test_every_token_is_accounted_for(scripted: list[Draft], texts: list[list[int]]) -> None:
    traces = [Trace((2, 0), tuple(text)) for text in texts]
    drafter = ScriptedDrafter(scripted)
    told: list[tuple[int, int]] = []
    replayed = replay(drafter, traces, 8, learn=True, tell=lambda *each: told.append(each))
    assert told == [(number, len(texts)) for number in range(1, len(texts) + 1)]
    assert drafter.accepted == {number: [2, 0, *text] for number, text in enumerate(texts, start=1)}
    assert drafter.closed == list(drafter.accepted)
    assert drafter.opened == [True] * len(texts)
    assert drafter.num_drafts == sum(map(len, replayed))
    pairs = [pair for text in texts for pair in zip([0, *text], text, strict=False)]
    assert drafter.recycled == pairs, "the true next token after every token"
    for steps, text in zip(replayed, texts, strict=True):
        assert sum(step.num_tokens for step in steps) == len(text)
        assert all(step.num_tokens == step.num_accepted + 1 for step in steps[:-1])
        assert steps[-1].num_accepted <= steps[-1].num_tokens <= steps[-1].num_accepted + 1


@given(scripted=st.lists(drafts(), min_size=1, max_size=6), texts=st.lists(outputs, min_size=1, max_size=4))
def test_figures_against_slow_loops(scripted: list[Draft], texts: list[list[int]]) -> None:
    curve = CostCurve((1, 2, 4, 8, 16), (1.0, 1.1, 1.5, 2.0, 3.5))
    replayed = replay(ScriptedDrafter(scripted), [Trace((), tuple(text)) for text in texts], 8)
    figures = replay_figures(replayed, curve)
    num_steps = drafted = accepted = empty = 0
    expected = spent = 0.0
    for text in texts:
        position = 0
        while position < len(text):
            draft = scripted[num_steps % len(scripted)]
            num_steps += 1
            rest = text[position:]
            paths = [path_of(draft, node) for node in range(len(draft))]
            agreeing = [p for p in paths if [draft.token_ids[node] for node in p] == rest[: len(p)]]
            best = max(agreeing, key=len, default=[])
            drafted += len(draft)
            accepted += len(best)
            empty += not draft.token_ids
            expected += sum(draft.path_probabilities)
            spent += curve.relative(1 + len(draft))
            position += min(len(best) + 1, len(rest))
    tokens = sum(map(len, texts))
    assert figures["steps"] == num_steps
    assert figures["mean_accepted_tokens"] == pytest.approx(tokens / num_steps, abs=1e-4)
    assert figures["drafted_per_step"] == pytest.approx(drafted / num_steps, abs=1e-4)
    assert figures["empty_rate"] == pytest.approx(empty / num_steps, abs=1e-4)
    assert figures["relative_speed"] == pytest.approx(tokens / spent, abs=1e-4)
    assert figures["acceptance_rate"] == (pytest.approx(accepted / drafted, abs=1e-4) if drafted else None)
    has_ratio = drafted and accepted
    assert figures["expected_over_actual"] == (pytest.approx(expected / accepted, abs=1e-4) if has_ratio else None)
    low, high = figures["mean_accepted_tokens_interval"]
    assert 1.0 <= low <= high <= max(map(len, texts))


def test_the_interval_holds_what_traces_vary() -> None:
    quick, slow = ReplayStep(3, 3, 4, None, 1), ReplayStep(0, 0, 1, None, 1)
    figures = replay_figures([[quick]] * 20 + [[slow]] * 20, None)
    assert figures["expected_over_actual"] is figures["relative_speed"] is figures["relative_speed_interval"] is None
    low, high = figures["mean_accepted_tokens_interval"]
    assert low < figures["mean_accepted_tokens"] == 2.5 < high
    assert high - low == pytest.approx(2 * 1.96 * 1.5 / 40**0.5, rel=0.15), "about that of a mean of 40 numbers"
    priced = replay_figures([[quick]] * 20 + [[slow]] * 20, CostCurve((1, 4), (1.0, 1.0)))
    assert priced["relative_speed_interval"] == [low, high], "drafts are free"
    priced = replay_figures([[quick]] * 20 + [[slow]] * 20, CostCurve((1, 4), (1.0, 4.0)))
    assert priced["relative_speed_interval"] == [1.0, 1.0], "the quick ones cost what they bring"


@given(token_ids=st.lists(st.integers(0, 3), max_size=40), cuts=st.integers(1, 5), budget=st.integers(1, 6))
def test_prompt_lookup_against_a_search(token_ids: list[int], cuts: int, budget: int) -> None:
    drafter = PromptLookupDrafter()
    drafter.open(7)
    for start in range(0, len(token_ids), cuts):
        drafter.accept(7, token_ids[start : start + cuts])
    expected: list[int] = []
    for length in (3, 2, 1):
        positions = [p for p in range(length, len(token_ids)) if token_ids[p - length : p] == token_ids[-length:]]
        if length <= len(token_ids) and positions:
            expected = token_ids[positions[0] : positions[0] + budget]
            break
    (draft,) = drafter.draft([SimpleNamespace(session_id=7, node_budget=budget)])  # type: ignore[list-item]
    assert list(draft.token_ids) == expected
    assert draft.is_chain
