"""Text of an engine's steps without drafts is learned, by a drafter in the process and by sidecars."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculant_graph import DraftConfig, LocalDrafter
from speculant_graph._core import Batch, RowDrafts
from speculant_graph.budget import LearnedCost
from speculant_graph.client import SidecarFleet
from speculant_graph.config import ClientConfig
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.engines.rows import DrafterRows
from speculant_graph.types import RowDrafter
from support.server import graph_file, serving


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("prompt", [1, 40, 400])
@pytest.mark.parametrize("output", [2, 60, 500])
def test_text_is_learned_though_no_step_is_drafted_for(rows: int, prompt: int, output: int) -> None:
    store = LearnedStore(100_000)
    memory = store.memory("")
    drafter = LocalDrafter(None, DraftConfig(), store, vocabulary_size=10_000)
    _decode_without_drafts(drafter, rows, prompt, output)
    # Learned text includes a few tokens of the prompt.
    assert len(memory.core) >= rows * (output - 1)


@pytest.mark.parametrize("first_draft", [20, 100, 127, 128, 200, 290])
def test_text_before_a_first_draft_is_learned(first_draft: int) -> None:
    store, rows, output = LearnedStore(100_000), 8, 300
    memory = store.memory("")
    drafter = LocalDrafter(None, DraftConfig(), store, vocabulary_size=10_000)
    _decode_without_drafts(drafter, rows, 40, output, drafted={first_draft, first_draft + 3})
    assert rows * (output - 1) <= len(memory.core) <= rows * (output + 32)


def test_text_is_learned_though_a_drafter_failed_at_first() -> None:
    class Failing(LocalDrafter):
        num_failures = 2

        def draft_rows(self, batch: Batch, *arguments: Any, **more: Any) -> RowDrafts:
            self.num_failures -= 1
            self.state = "unavailable" if self.num_failures >= 0 else "ok"
            if self.state == "ok":
                return super().draft_rows(batch, *arguments, **more)
            return RowDrafts([0] * len(batch.session_ids), [], [], [])

    store, output = LearnedStore(100_000), 300
    memory = store.memory("")
    _decode_without_drafts(Failing(None, DraftConfig(), store, vocabulary_size=10_000), 8, 40, output)
    assert len(memory.core) >= 8 * (output - 1)


@pytest.mark.parametrize("num_sidecars", [1, 2])
def test_sidecars_learn_text_though_no_step_is_drafted_for(num_sidecars: int, tmp_path: Path) -> None:
    rows, output = 8, 100
    with ExitStack() as stack:
        servers = []
        for number in range(num_sidecars):
            folder = tmp_path / str(number)
            folder.mkdir()
            graph_path = graph_file(folder / "graph.pkl", [1, 2, 3], 10_000)
            servers.append(stack.enter_context(serving(graph_path, folder)))
        config = ClientConfig(address=",".join(each.address for each in servers), deadline_ms=5_000.0)
        client = SidecarFleet(config, tokenizer=None, draft=DraftConfig())
        _decode_without_drafts(DrafterRows(client), rows, 40, output)
        assert not client.statistics.failed_steps
        # Learned text includes a few tokens of the prompt, but not most of it.
        assert rows * (output - 1) <= sum(each.metrics()["learned_tokens"] for each in servers) <= rows * (output + 32)


def _decode_without_drafts(
    drafter: RowDrafter, rows: int, prompt: int, output: int, drafted: Collection[int] = ()
) -> None:
    """Decode; only the steps with the numbers ``drafted`` have drafts."""
    sessions = EngineSessions(drafter, most_drafted=6, vocabulary_size=10_000, cost=LearnedCost())
    assert sessions._budget is not None
    step = 0
    sessions._budget.may_draft = lambda: step in drafted  # type: ignore[method-assign]
    sessions._budget.num_rest = lambda: min((each - step for each in drafted if each > step), default=100)  # type: ignore[method-assign]
    texts = np.arange(rows * (prompt + output), dtype=np.int32).reshape(rows, -1)
    for step in range(output):
        sessions.draft([text[: prompt + step] for text in texts], [6] * rows)
    sessions.close()
    assert sessions.counts.drafted_steps == len(drafted)
    assert not sessions.counts.failed_steps
