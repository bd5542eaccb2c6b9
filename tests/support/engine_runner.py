"""An engine without a model, whose rows join, move, are preempted, resume and leave, as in vLLM."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from speculant_graph.engines.engine_sessions import EngineSessions
from speculant_graph.types import (
    Draft,
    Drafter,
    DrafterState,
    DrafterStatistics,
    PassReport,
    SequenceStep,
    SessionOptions,
)


@dataclass
class WatchedDrafter:
    """Forwards all calls to a real drafter and records violations.

    Every row must be drafted from its own text, and a session must belong to one text for its whole life.
    """

    inner: Drafter
    rows: list[list[int]] | None = None
    """Text of each row of the batch."""
    complaints: list[str] = field(default_factory=list)
    texts: dict[int, list[int]] = field(default_factory=dict)
    num_opened: int = 0
    num_calls: int = 0
    tenants: dict[int, str] = field(default_factory=dict)
    ended: list[list[int]] = field(default_factory=list)
    """Texts of finished sessions, as far as this drafter was shown them."""

    @property
    def state(self) -> DrafterState:
        return self.inner.state

    @property
    def statistics(self) -> DrafterStatistics:
        return self.inner.statistics

    def open(self, session_id: int, options: SessionOptions | None = None) -> str | None:
        if options is not None and options.tenant is not None:
            self.tenants[session_id] = options.tenant
        return self.inner.open(session_id, options)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        self.num_calls += 1
        ids = [step.session_id for step in steps]
        if len(set(ids)) < len(ids):
            self.complaints.append("a session stands for several rows")
        is_reading = all(step.node_budget < 2 for step in steps)
        if not is_reading and self.rows is not None and self.rows != [list(step.token_ids) for step in steps]:
            self.complaints.append("rows are drafted for from other texts than theirs")
        for step in steps:
            before, now = self.texts.get(step.session_id), list(step.token_ids)
            if before is None:
                self.num_opened += 1
            elif is_reading and now[: len(before)][-16:] == before[-16:]:
                now = before + now[len(before) :]  # the ends of ended sequences follow any tokens
            elif now[: len(before)] != before:
                self.complaints.append("a session continues with another text")
            self.texts[step.session_id] = now
        return self.inner.draft(steps)

    def observe(self, report: PassReport) -> float:
        return self.inner.observe(report)

    def finish(self, session_id: int) -> None:
        if session_id in self.texts:
            self.ended.append(self.texts.pop(session_id))
        self.inner.finish(session_id)

    def close(self) -> None:
        self.inner.close()


@dataclass
class Request:
    """A request: its text so far, and the tokens still to be generated."""

    number: int
    text: list[int]
    rest: list[int]
    is_read: bool = False
    shown: tuple[int, ...] = ()
    """Its text when drafts were last requested."""
    draft: tuple[int, ...] = ()


class EngineRunner:
    """Runs requests to their ends. The array of texts is reused between steps, as in an engine."""

    def __init__(
        self,
        drafter: WatchedDrafter,
        sessions: EngineSessions,
        requests: Sequence[Request],
        *,
        batch: int,
        seed: int,
        tells_ids: bool = False,
    ) -> None:
        self.drafter, self.sessions, self.waiting, self.batch = drafter, sessions, list(requests), batch
        self.random = random.Random(seed)
        self.tells_ids = tells_ids
        longest = max(len(each.text) + len(each.rest) for each in requests)
        self.tokens = np.zeros((batch, longest), np.int32)
        self.rows: list[Request] = []
        self.num_passes = 0
        self.done: list[Request] = []

    def run(self) -> None:
        while self.waiting or self.rows:
            self.step()
        self.drafter.rows = None
        self.sessions.draft([], [])

    def step(self) -> None:
        """Admit and preempt requests, run a pass, and request drafts."""
        while self.waiting and len(self.rows) < self.batch and self.random.random() < 0.7:
            self.rows.insert(self.random.randint(0, len(self.rows)), self.waiting.pop(0))
        if self.rows and self.random.random() < 0.1:  # preempted: it reads its whole text again later
            away = self.rows.pop(self.random.randrange(len(self.rows)))
            away.is_read, away.draft = False, ()
            self.waiting.insert(self.random.randint(0, len(self.waiting)), away)
        if self.random.random() < 0.3:
            self.random.shuffle(self.rows)
        self.num_passes += 1
        decoding: list[Request] = []
        for row in self.rows:
            if not row.is_read and self.random.random() < 0.3:
                continue  # reads another chunk of its prompt
            row.is_read = True
            accepted = 0
            while accepted < min(len(row.draft), len(row.rest) - 1) and row.draft[accepted] == row.rest[accepted]:
                accepted += 1
            row.text += row.rest[: accepted + 1]
            row.rest = row.rest[accepted + 1 :]
            decoding.append(row)
        texts = []
        self.tokens[:] = self.random.randrange(3)  # stale contents between texts
        for index, row in enumerate(self.rows):
            text = self.tokens[index, : len(row.text)]
            text[:] = row.text
            if row in decoding:
                texts.append(text)
        self.drafter.rows = [row.text for row in decoding]
        drafts = self.sessions.draft(
            texts,
            [len(row.rest) for row in decoding],
            request_ids=[str(row.number) for row in decoding] if self.tells_ids else None,
            read_prompts=len(decoding) < len(self.rows),
        ).lists()
        self.tokens[:] = 0
        for row, draft in zip(decoding, drafts, strict=True):
            row.draft, row.shown = tuple(draft), tuple(row.text)
        self.done += [row for row in self.rows if not row.rest]
        self.rows = [row for row in self.rows if row.rest]
