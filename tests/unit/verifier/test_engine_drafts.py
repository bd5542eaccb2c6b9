"""Drafts for a running batch: the text is the model's own, whatever the drafts are."""

from __future__ import annotations

import numpy as np
import pytest

from speculant_graph._core import ROW_WIDTH
from speculant_graph.config import DraftConfig, VerifierConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.types import EMPTY_DRAFT, Draft, Proposal
from speculant_verifier.engine import Engine, Request
from support.drafters import ScriptedDrafter
from support.engines import CONFIG, alone, finish, make_engine


@pytest.mark.parametrize("answer", [
    lambda steps: 1 // 0,
    lambda steps: [Draft((None,), (0,))] * len(steps),
    lambda steps: [Draft((10**30, -1), (0, 1))] * len(steps),
    lambda steps: [Draft((1, 2), (0, 1), (float("nan"), 0.9))] * len(steps),
    lambda steps: [Draft((1,), (0,), (), (Proposal(np.arange(3, dtype=np.uint32), np.ones(1)),))] * len(steps),
    lambda steps: [Draft((1, 1, 1), (0, 0, 0), (0.5, 0.5, 0.5))] * len(steps),
    lambda steps: [Draft((1,), (0,), (), (Proposal(np.array([1, 2**31], np.uint32), np.full(2, 0.5)),))] * len(steps),
])  # fmt: skip
@pytest.mark.parametrize("rule", ["follow", "token", "tree-wor"])
def test_whatever_a_drafter_answers_the_text_is_the_same(gpt_oss, answer, rule):
    """The engine trims drafts by their probabilities, so it must survive invalid ones."""
    drafter = ScriptedDrafter(lambda _: None)
    drafter.draft = answer
    config = CONFIG.model_copy(update={"rule": rule, "speculation": "auto"})
    engine = Engine(gpt_oss, drafter, VerifierConfig(), DraftConfig(k=4, strategy="tree"))
    engine.add(Request(0, (1, 2, 3), config))
    assert finish(engine)[0].sequence.output == alone(gpt_oss, (1, 2, 3))


@pytest.mark.parametrize("most_nodes_kept", [0, 1, 2, 4])
def test_feedback_names_the_nodes_of_the_draft_that_the_drafter_made(gpt_oss, monkeypatch, most_nodes_kept):
    """Even if nodes were left out, a node's row has the target's top tokens after the path to this node."""
    draft = Draft((7, 8, 9, 10), (0, 0, 2, 3), (0.1, 0.9, 0.8, 0.7), draft_id=5)
    told = []

    def script(step):
        told.append((tuple(step.token_ids), step.feedback))
        return draft

    engine = Engine(gpt_oss, ScriptedDrafter(script), VerifierConfig(), DraftConfig(k=4, strategy="tree"))
    order = [1, 2, 3, 0][:most_nodes_kept]

    def keep(histories, drafts, can_trim):
        return [[node for node in sorted(order) if node < len(draft)] for draft in drafts]

    monkeypatch.setattr(engine._controller, "keep", keep)
    engine.add(Request(0, (1, 2, 3), CONFIG.model_copy(update={"speculation": "auto"})))
    finish(engine)
    (known, _), (_, feedback) = told[:2]
    assert feedback.draft_id == 5
    assert list(feedback.nodes) == [0, *(node + 1 for node in sorted(order))]
    paths = {0: (), 1: (7,), 2: (8,), 3: (8, 9), 4: (8, 9, 10)}
    for node, row in zip(feedback.nodes, feedback.rows, strict=True):
        logits = gpt_oss.forward([[*known, *paths[node]]], gpt_oss.new_cache(1), [0])[0, 0]
        assert row.tolist() == logits.topk(ROW_WIDTH).indices.tolist()


def test_a_session_that_can_not_be_opened_ends_no_other_request(gpt_oss):
    """A strict drafter's refusal ends its own request; any other error only costs the drafts."""
    errors = [SpeculantError("no answer; start the sidecar"), OSError("broken"), None]

    class Failing(ScriptedDrafter):
        def open(self, session_id):
            if error := errors.pop(0):
                raise error
            super().open(session_id)

    drafter = Failing(lambda _: EMPTY_DRAFT)
    engine = make_engine(gpt_oss, drafter)
    for index in range(3):
        engine.add(Request(index, (1, 2, 3), CONFIG))
    ended = finish(engine)
    assert [ended[index].finish_reason for index in range(3)] == ["error", "length", "length"]
    assert str(ended[0].sequence.error) == "no answer; start the sidecar"
    assert ended[1].sequence.output == ended[2].sequence.output == alone(gpt_oss, (1, 2, 3))
    assert not drafter.open_sessions
