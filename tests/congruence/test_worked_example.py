"""Drafts the worked example at the head of ``tree_drafter.hpp``."""

from __future__ import annotations

import pytest

from speculant_graph._core import Calibration
from speculant_graph.config import DraftConfig
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.types import SequenceStep
from support.graphs import graph_of

THE, CAT, SAT, RAN, STOP = range(1, 6)


def test_the_worked_example() -> None:
    graph = graph_of([[THE, CAT, SAT, STOP, THE, CAT, RAN, STOP, THE, CAT, SAT, STOP]], 2, 10)
    config = DraftConfig(strategy="tree", sources=("corpus",))
    drafter = SessionDrafter(graph, config, calibration=Calibration())  # without a mixer
    drafter.open(1)
    drafter.accept(1, [THE, CAT])
    [draft] = drafter.draft([SequenceStep(1, [], 3)])
    assert (draft.token_ids, draft.parents) == ((SAT, RAN, STOP), (0, 0, 1))
    assert draft.path_probabilities == pytest.approx((0.2722, 0.1361, 0.1112), abs=5e-5)
    drafter.accept(1, [SAT])
    drafter.open(2)
    drafter.accept(2, [THE, CAT])
    [draft] = drafter.draft([SequenceStep(2, [], 1)])
    assert draft.token_ids == (SAT,)
    assert draft.path_probabilities == pytest.approx((0.3708,), abs=5e-5)
