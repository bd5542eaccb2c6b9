"""Clients of a sidecar, and steps for which its graph has drafts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from speculant_graph.client import DrafterClient, SidecarFleet
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, Fingerprint, SequenceStep

GREEDY = DraftConfig(strategy="greedy")
"""Settings whose drafts do not depend on learned state of the sidecar."""
PATIENT = {"deadline_ms": 5_000.0}
SESSION_IDS = itertools.count(1)
GIVE_UP_S = 30.0


def make_client(
    address: str,
    tokenizer: Fingerprint | None = None,
    *,
    strict: bool = False,
    draft: DraftConfig = GREEDY,
    **settings: object,
) -> DrafterClient:
    config = ClientConfig.model_validate({"address": address, **PATIENT, **settings})
    return DrafterClient(config, tokenizer=tokenizer, draft=draft, strict=strict)


def known_tokens(graph: NgramGraph) -> list[int]:
    return [token for token in range(graph.vocabulary_size) if graph.match([token])]


def make_steps(graph: NgramGraph, count: int = 1) -> list[SequenceStep]:
    """Return steps of new sessions; the graph has a draft for each."""
    known = known_tokens(graph)
    return [SequenceStep(next(SESSION_IDS), [known[index % len(known)]], 4) for index in range(count)]


def tokens(drafts: Sequence[Draft]) -> list[tuple[int, ...]]:
    return [draft.token_ids for draft in drafts]


def recovered(client: DrafterClient | SidecarFleet, steps: Sequence[SequenceStep]) -> list[Draft]:
    """Step until every sequence has a draft."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_s:
        drafts = client.draft(steps)
        if all(drafts):
            return drafts
        time.sleep(0.005)
    raise AssertionError(f"no drafts came: {client.statistics}")
