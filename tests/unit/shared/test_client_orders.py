"""The client's core with random orders of network events, with a trivial drafter."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.client.batches import InFlightBatch
from speculant_graph.errors import DraftRequestError, OverloadError, TokenizerMismatchError
from speculant_graph.types import SequenceStep
from support.dict_drafter import drafted
from support.network import UNAVAILABLE, Network

OPERATIONS = (
    *("begin", "open", "answer") * 6, *("end",) * 4, "refuse", "repeat answer", "lose answer", "end stream",
    "lose session", "finish", "wait", "other text", "shorter text", "foreign answer",
    "refuse step",
)  # fmt: skip


def play(network: Network, operations: list[tuple[str, int]]) -> dict[int, list[int]]:
    """Run the operations; every returned draft must belong to the step that requested it."""
    core = network.core
    texts: dict[int, list[int]] = {}
    running: list[InFlightBatch] = []

    def end(number: int) -> None:
        ended = running.pop(number % len(running))
        for step, draft in zip(ended.steps, core.end(ended, network.now_s), strict=True):
            assert draft.token_ids in ((), drafted(step.token_ids, step.node_budget))
            assert bool(draft.draft_id) == bool(draft)

    for name, number in operations:
        session_id = number % 3
        text = texts.setdefault(session_id, [session_id])
        match name:
            case "begin":
                text.extend(range(number % 4))
                steps = [SequenceStep(key, tuple(texts[key]), 3) for key in list(texts)[: 1 + number % 3]]
                if batch := core.begin(steps, network.now_s, lambda: None):
                    running.append(batch)
            case "end" if running:
                end(number)
            case "open" if network.openings:
                network.settle_opening(number)
            case "refuse" if network.openings:
                errors = (UNAVAILABLE, OverloadError("full", 0.01), TokenizerMismatchError("other"))
                network.settle_opening(number, errors[number % 3])
            case "answer" | "repeat answer" if network.answers:
                network.deliver(number, keeps=name == "repeat answer")
            case "lose answer" if network.answers:
                network.answers.pop(number % len(network.answers))
            case "end stream":
                errors = (UNAVAILABLE, OverloadError("full", 0.01), DraftRequestError("odd"))
                core.stream_ended(errors[number % 3], network.now_s)
            case "lose session":
                held = network.drafter.sessions
                if held:
                    del held[sorted(held)[number % len(held)]]
            case "finish":
                core.finish(session_id)
                del texts[session_id]
            case "wait":
                network.now_s += number / 1_000
            case "other text":
                texts[session_id] = [*(token + 1 for token in text), 7]
            case "shorter text":
                texts[session_id] = text[: number % (len(text) + 1)] or [5]
            case "foreign answer":
                core.answered(bytes([number % 256] * 3), network.now_s)
            case "refuse step" if network.answers:
                network.refuse((3, 8, 13, 14)[number % 4])
        network.work(loses=number % 11 == 10)
        for session in core._registry._sessions.values():
            assert session.position <= session.num_sent
    while running:
        end(0)
    network.work()
    return texts


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 60)), min_size=20, max_size=80))
def test_whatever_happens_drafts_fit_their_steps_and_come_again(operations: list[tuple[str, int]]) -> None:
    network = Network()
    texts = play(network, operations)
    # From here on there are no faults.
    steps = [SequenceStep(key, text, 3) for key, text in texts.items()] or [SequenceStep(9, [9], 3)]
    for _ in range(2):
        network.now_s += 1.0
        network.recover(steps)
        drafts = network.draft(steps)
    assert [draft.token_ids for draft in drafts] == [drafted(step.token_ids, 3) for step in steps]
    assert network.core.state == "ok"
