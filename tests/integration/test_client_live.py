"""The client with a real sidecar: many threads, deadlines, closing."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from speculant_graph.client import DrafterClient, LocalDrafter
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import DrafterUnavailableError, TokenizerMismatchError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, Fingerprint, SequenceStep
from support.clients import (
    GREEDY,
    PATIENT,
    SESSION_IDS,
    known_tokens,
    make_client,
    make_steps,
    tokens,
)
from support.processes import Sidecar


def test_threads_share_one_client(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    found: dict[int, list[tuple[int, ...]]] = {}
    steps = make_steps(small_graph, 4)
    with make_client(shared_sidecar.address) as client:

        def decode(step: SequenceStep) -> None:
            client.open(step.session_id)
            text = list(step.token_ids)
            for _ in range(30):
                [draft] = client.draft([SequenceStep(step.session_id, list(text), 4)])
                found.setdefault(step.session_id, []).append(draft.token_ids)
                text += [*draft.token_ids[:2], step.token_ids[0]]
            client.finish(step.session_id)

        threads = [threading.Thread(target=decode, args=[step]) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.statistics.steps == 120
        assert client.statistics.failed_steps == 0
    local = LocalDrafter(small_graph, GREEDY)
    for step in steps:
        text = list(step.token_ids)
        for token_ids in found[step.session_id]:
            assert token_ids == local.draft([SequenceStep(step.session_id, text, 4)])[0].token_ids
            text += [*token_ids[:2], step.token_ids[0]]


def test_closing_waits_for_nobody_for_long(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    client = make_client(shared_sidecar.address)
    steps = make_steps(small_graph, 3)
    assert all(client.draft(steps))
    client.close()
    client.close()
    client.finish(steps[0].session_id)
    assert client.draft(steps) == [Draft()] * 3
    client.open(next(SESSION_IDS))


def test_a_deadline_leaves_the_stream_alive(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    token = known_tokens(small_graph)[0]
    with make_client(shared_sidecar.address, deadline_ms=500.0) as client:
        text = [token]
        assert client.draft([SequenceStep(1, text, 4)])[0]
        for _ in range(2):
            text.append(token)
            shared_sidecar.signal(signal.SIGSTOP)
            assert not client.draft([SequenceStep(1, text, 4)])[0]
            shared_sidecar.signal(signal.SIGCONT)
            text.append(token)
            assert client.draft([SequenceStep(1, text, 4)])[0]
        assert client.statistics.late_answers == client.statistics.failed_steps == 2  # the stream has survived


def test_what_opening_raises(shared_sidecar: Sidecar, tmp_path: Path) -> None:
    nobody, other = f"unix://{tmp_path}/nobody.sock", Fingerprint("mine", "cd" * 32, 50)
    with (
        make_client(shared_sidecar.address, other) as client,
        pytest.raises(TokenizerMismatchError),
    ):
        client.open(next(SESSION_IDS))
    with make_client(nobody, strict=True) as client, pytest.raises(DrafterUnavailableError):
        client.open(1)

    with make_client(nobody) as client:
        client.open(1)
        for _ in range(10):
            assert not client.draft([SequenceStep(1, [1], 4)])[0]
        assert client.state == "unavailable"
        assert client.statistics.skipped_steps > 0
        client.finish(2)  # never opened


def test_a_token_outside_the_vocabulary_costs_only_its_sequence(
    shared_sidecar: Sidecar, small_graph: NgramGraph
) -> None:
    [good], odd = make_steps(small_graph), SequenceStep(next(SESSION_IDS), [50], 4)
    with make_client(shared_sidecar.address) as client:
        assert [bool(draft) for draft in client.draft([odd, good])] == [False, True]
        assert client.state == "ok"
        odd = replace(odd, token_ids=[50, *good.token_ids])  # drafts continue after it
        assert tokens(client.draft([odd, good]))[0] == tokens(client.draft([good]))[0]


def test_a_verifier_that_needs_no_distributions_is_sent_none(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    config = ClientConfig.model_validate({"address": shared_sidecar.address, **PATIENT})
    drafts = []
    for wants_proposals in (True, False):
        draft = DraftConfig(strategy="sampling")
        with DrafterClient(config, tokenizer=None, draft=draft, wants_proposals=wants_proposals) as client:
            drafts += client.draft(make_steps(small_graph))
    assert drafts[0].token_ids == drafts[1].token_ids
    assert len(drafts[0].proposals) == len(drafts[0]) > 0
    assert drafts[1].proposals == ()
