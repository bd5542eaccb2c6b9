"""A sidecar folds learned text: its metrics show this, and no text is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from speculant_graph.types import Fingerprint
from support.learned import counted, held
from support.server import OK, PATIENCE_S, LiveServer, Serve, step_of

FOLD = {"enabled": True, "young_tokens": 500}


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def teach(server: LiveServer, tenant: str, text: list[int]) -> None:
    session_id = server.open(tenant=tenant, learn=True)
    for position, tokens in ((0, [1]), (1, text)):
        assert list(server.drafter.Draft(step_of(session_id, tokens, position, 1)).sequence_statuses) == [OK]
    server.close(session_id, tenant)


def test_a_sidecar_folds(serve: Serve, tmp_path: Path) -> None:
    chance = random.Random(0)
    texts = [chance.choices(range(20), k=100) for _ in range(30)]
    server = serve(learned=tmp_path / "learned", fold=FOLD, draft={"strategy": "tree"})
    before = server.metrics()
    assert {before[name] for name in ("folds_total", "failed_folds_total", "fold_seconds_total")} == {0.0}
    for text in texts:
        teach(server, "acme", text)
    wait_until(lambda: server.metrics()["folds_total"] >= 1)
    wait_until(lambda: not list((tmp_path / "learned").glob("*/*/.fold-*")))
    told = server.metrics()
    assert told["fold_seconds_total"] > 0
    assert told["failed_folds_total"] == 0
    assert 0 < told["learned_tokens"] <= 500
    [served] = server.server._graphs
    learned = served.drafter.learned
    assert learned.graphs("acme")
    assert learned.graphs("other") == ()
    server.stop()
    [folder] = (tmp_path / "learned").iterdir()
    tokenizer = Fingerprint("t", "ab" * 32, 50)
    learned_texts = [[1, *text] for text in texts]  # with the last prompt token
    assert held(folder, "acme", tokenizer=tokenizer) == counted(learned_texts)
