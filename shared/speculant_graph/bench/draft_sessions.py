"""Sessions for a bench of drafting: held-out text as prompts and accepted portions, and drafters that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from speculant_graph.draft.session_drafter import DraftOrder
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.types import Draft, TokenId

WARM_UP_ROUNDS = 64
"""First rounds, which are not timed."""

_SHORTEST_PROMPT, _LONGEST_PROMPT = 500, 2_000
_MOST_ACCEPTED = 4


@dataclass(frozen=True, slots=True)
class SessionText:
    """A piece of text as a session gets it."""

    prompt: list[TokenId]
    """500 to 2,000 tokens."""
    portions: list[list[TokenId]]
    """What is accepted before each draft, 1 to 4 tokens."""


def longest_session(num_portions: int) -> int:
    """Return the most tokens of a session with so many portions."""
    return _LONGEST_PROMPT + _MOST_ACCEPTED * num_portions


def cut_sessions(
    text: UInt32Array, num_sessions: int, num_portions: int, random: np.random.Generator
) -> list[SessionText]:
    """Cut sessions out of a text of at least :func:`longest_session` tokens, at random places."""
    sessions = []
    for start in random.integers(0, text.size - longest_session(num_portions) + 1, num_sessions).tolist():
        first = start + int(random.integers(_SHORTEST_PROMPT, _LONGEST_PROMPT + 1))
        ends = (first + np.cumsum(random.integers(1, _MOST_ACCEPTED + 1, num_portions))).tolist()
        portions = [text[begin:end].tolist() for begin, end in zip([first, *ends], ends, strict=False)]
        sessions.append(SessionText(text[start:first].tolist(), portions))
    return sessions


class SteppedDrafter(Protocol):
    """What is measured; :class:`~speculant_graph.draft.session_drafter.SessionDrafter` is one."""

    def open(self, session_id: int) -> None:
        """Begin a sequence."""

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Add the prompt, and then what was accepted."""

    def draft(self, orders: Sequence[DraftOrder]) -> list[Draft]:
        """Draft for sequences."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a drafter is asked for, and when."""

    budget: int
    """Most nodes of a draft."""
    seed: int = 0
    """Seed of strategies that draw."""
    batch: int = 1
    """Sequences of one call."""
    every: int = 1
    """It has a turn in one of so many rounds."""


class Turns:
    """A drafter at its sessions, and the times of its calls.

    Turn t is one call for sessions t, t + 1, ... (as many as there are in a batch, modulo their number), after each of
    them has accepted its next portion.
    """

    def __init__(self, drafter: SteppedDrafter, pace: Pace, sessions: Sequence[SessionText]) -> None:
        """Open the sessions, at least one batch."""
        self.drafter = drafter
        self.pace = pace
        self._sessions = sessions
        self._portions = [iter(session.portions) for session in sessions]
        self._num_prompt_tokens, self._prompt_ns = 0, 0
        self._accepted: list[tuple[int, int]] = []
        self._draft_ns: list[int] = []
        self.drafted: list[list[tuple[tuple[TokenId, ...], tuple[int, ...]]]] = []
        """Tokens and parents of the timed calls' drafts."""

    def begin(self, number: int, work: Callable[[], None]) -> None:
        """Begin a session with its prompt."""
        prompt = self._sessions[number].prompt
        self.drafter.open(number)
        work()
        start = time.perf_counter_ns()
        self.drafter.accept(number, prompt)
        self._prompt_ns += time.perf_counter_ns() - start
        self._num_prompt_tokens += len(prompt)

    def step(self, turn: int, work: Callable[[], None], *, is_timed: bool) -> None:
        """Accept and draft, each call after other work."""
        pace = self.pace
        numbers = [(turn + place) % len(self._sessions) for place in range(pace.batch)]
        for number in numbers:
            portion = next(self._portions[number])
            work()
            start = time.perf_counter_ns()
            self.drafter.accept(number, portion)
            if is_timed:
                self._accepted.append((time.perf_counter_ns() - start, len(portion)))
        orders = [DraftOrder(number, pace.budget, pace.seed) for number in numbers]
        work()
        start = time.perf_counter_ns()
        drafts = self.drafter.draft(orders)
        if is_timed:
            self._draft_ns.append(time.perf_counter_ns() - start)
            self.drafted.append([(draft.token_ids, draft.parents) for draft in drafts])

    def draft_us(self, percent: float) -> float:
        """Return a percentile of the calls that drafted, in microseconds."""
        return round(float(np.percentile(self._draft_ns, percent)) / 1e3, 2)

    def accept_us(self, percent: float) -> float:
        """Return a percentile of the calls that accepted a portion, in microseconds."""
        return round(float(np.percentile([nanoseconds for nanoseconds, _ in self._accepted], percent)) / 1e3, 2)

    @property
    def accept_us_per_token(self) -> float:
        """Microseconds of all those calls, over their tokens."""
        nanoseconds = sum(nanoseconds for nanoseconds, _ in self._accepted)
        return round(nanoseconds / sum(tokens for _, tokens in self._accepted) / 1e3, 3)

    @property
    def prompt_ns_per_token(self) -> float:
        """Nanoseconds of taking prompts, over their tokens."""
        return round(self._prompt_ns / self._num_prompt_tokens, 1)

    @property
    def nodes_per_draft(self) -> float:
        """Mean number of nodes."""
        return round(float(np.mean([len(tokens) for drafts in self.drafted for tokens, _ in drafts])), 2)


def num_portions(num_rounds: int, paces: Sequence[Pace], num_sessions: int) -> int:
    """Return how many portions a session needs at most."""
    return max(-(-(WARM_UP_ROUNDS + num_rounds) * pace.batch // (pace.every * num_sessions)) + 1 for pace in paces)


def take_turns(
    drafters: Sequence[Turns],
    num_sessions: int,
    num_rounds: int,
    work: Callable[[], None],
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Let all drafters begin their sessions, then accept and draft in turns, first, second, ... equally often.

    Args:
        drafters: who.
        num_sessions: of each.
        num_rounds: rounds that are timed.
        work: done before every timed call.
        tell: told the rounds that are done and their number, after each.
    """

    def in_turns(index: int) -> Sequence[Turns]:
        first = index % len(drafters)
        return [*drafters[first:], *drafters[:first]]

    total = num_sessions + WARM_UP_ROUNDS + num_rounds
    for number in range(num_sessions):
        for drafter in in_turns(number):
            drafter.begin(number, work)
        tell(number + 1, total)
    for index in range(WARM_UP_ROUNDS + num_rounds):
        for drafter in in_turns(index):
            turn, rest = divmod(index, drafter.pace.every)
            if not rest:
                drafter.step(turn, work, is_timed=index >= WARM_UP_ROUNDS)
        tell(num_sessions + index + 1, total)
