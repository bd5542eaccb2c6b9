"""Small drafters for tests of the verifier: they know the answer, guess, or misbehave."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from speculant_graph.types import Draft, DrafterStatistics, PassReport, SequenceStep


class ScriptedDrafter:
    """Drafts by a function of the step, and records which sessions are open."""

    def __init__(self, script: Callable[[SequenceStep], Draft]) -> None:
        self.script = script
        self.open_sessions: set[int] = set()
        self.state = "ok"
        self.statistics = DrafterStatistics()

    def open(self, session_id: int) -> None:
        self.open_sessions.add(session_id)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        assert all(step.session_id in self.open_sessions for step in steps)
        return [self.script(step) for step in steps]

    def observe(self, report: PassReport) -> float:
        return 0.0

    def finish(self, session_id: int) -> None:
        self.open_sessions.discard(session_id)

    def close(self) -> None:
        self.open_sessions.clear()


def chain(token_ids: Sequence[int]) -> Draft:
    return Draft(tuple(token_ids), tuple(range(len(token_ids))))


def knowing(references: Sequence[Sequence[int]], accuracy: float, vocabulary_size: int, seed: int = 0):
    """Return a function that drafts the reference's next tokens as a chain, each correct with ``accuracy``."""
    generator = random.Random(seed)

    def script(step: SequenceStep) -> Draft:
        known = list(step.token_ids)
        reference = next((r for r in references if list(r[: len(known)]) == known), ())
        future = list(reference[len(known) : len(known) + step.node_budget])
        return chain([t if generator.random() < accuracy else generator.randrange(vocabulary_size) for t in future])

    return script


def knowing_tree(references: Sequence[Sequence[int]], vocabulary_size: int, seed: int = 0):
    """Return a function that drafts a random tree with the reference's path among wrong siblings."""
    generator = random.Random(seed)

    def script(step: SequenceStep) -> Draft:
        known = list(step.token_ids)
        reference = next((r for r in references if list(r[: len(known)]) == known), ())
        future = list(reference[len(known) :])
        token_ids: list[int] = []
        parents: list[int] = []
        right, depth = 0, 0  # the last node of the reference's path, and its depth
        while len(token_ids) < step.node_budget:
            siblings = {t for t, p in zip(token_ids, parents, strict=True) if p == right}
            if depth < len(future) and generator.random() < 0.5 and future[depth] not in siblings:
                token_ids.append(future[depth])
                parents.append(right)
                right, depth = len(token_ids), depth + 1
            else:
                parent = generator.randrange(len(token_ids) + 1)
                taken = {t for t, p in zip(token_ids, parents, strict=True) if p == parent}
                token = generator.randrange(vocabulary_size)
                if token in taken or (parent == right and depth < len(future) and token == future[depth]):
                    continue
                token_ids.append(token)
                parents.append(parent)
        return Draft(tuple(token_ids), tuple(parents))

    return script
