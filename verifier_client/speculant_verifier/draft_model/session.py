"""What a drafter with a language model knows of one sequence, and of a step of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from speculant_graph.config import DraftConfig
from speculant_graph.types import EMPTY_DRAFT, Feedback, SequenceStep, SessionOptions, TokenId
from speculant_verifier.draft_model.passes import CachedSequence
from speculant_verifier.draft_model.tree import DraftTree

_FIRST_HIT_RATE = 0.6
_HIT_SHARE = 0.12
"""What one outcome counts in the rate of a sequence."""
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 128


@dataclass(slots=True)
class Waiting:
    """Steps without the model, until it is tried: the sequence may have become easier. Each time later."""

    num_steps: int = _FIRST_PAUSE
    """Since it was asked last."""
    pause: int = _FIRST_PAUSE
    """After so many it is tried."""

    @property
    def share(self) -> float:
        """What of the pause is over."""
        return self.num_steps / self.pause

    def asked(self, *, is_paying: bool) -> None:
        """Begin anew: the model is asked, because that pays or for a try."""
        self.num_steps = 0
        self.pause = _FIRST_PAUSE if is_paying else min(2 * self.pause, _LONGEST_PAUSE)


@dataclass(eq=False, slots=True)
class DraftSession:
    """One sequence; mutable."""

    options: SessionOptions | None = None
    hit_rate: float = _FIRST_HIT_RATE
    """How often the model was right lately."""
    waiting: Waiting = field(default_factory=Waiting)
    cached: CachedSequence | None = None
    """What the model has read of it."""
    num_tokens: int = 0
    """Tokens it had at its latest step."""
    text: Sequence[TokenId] = ()
    """These."""
    late_tokens: float = 0.0
    """What the time of passes behind the first one of the latest step was worth."""
    tree: DraftTree = field(default_factory=lambda: DraftTree(EMPTY_DRAFT))
    """Of its latest step."""
    inner_id: int = 0
    """The n-grams' draft of that step."""
    numbers: Sequence[int] = ()
    """Per node of our draft, its number in the n-grams' draft; 0 for those that are not of it."""

    @property
    def tenant(self) -> str:
        """Whose text it is; empty if the caller did not say."""
        return (self.options.tenant if self.options is not None else None) or ""

    def forget_model(self) -> None:
        """Begin anew with another model."""
        self.cached, self.tree = None, DraftTree(EMPTY_DRAFT)
        self.hit_rate, self.waiting = _FIRST_HIT_RATE, Waiting()

    def note_hits(self, hits: Sequence[bool]) -> None:
        """Note whether the model was right, place by place."""
        for is_right in hits:
            self.hit_rate += _HIT_SHARE * (is_right - self.hit_rate)

    def translated(self, feedback: Feedback | None) -> Feedback | None:
        """Return what the target thought of our draft, as far as its nodes are of the n-grams' draft."""
        if feedback is None or not self.inner_id:
            return None
        numbers = [0, *self.numbers]
        known = [index for index, node in enumerate(feedback.nodes) if node == 0 or numbers[node]]
        return Feedback(self.inner_id, [numbers[feedback.nodes[index]] for index in known], feedback.rows[known])


@dataclass(frozen=True, slots=True)
class WantedDraft:
    """A step of a sequence, and what is known of it."""

    step: SequenceStep
    session: DraftSession
    config: DraftConfig

    @property
    def tree(self) -> DraftTree:
        """That of the step."""
        return self.session.tree

    @property
    def budget(self) -> int:
        """Most nodes."""
        return self.step.node_budget

    @property
    def max_depth(self) -> int:
        """Of these."""
        return min(self.budget, self.step.max_depth or self.config.max_depth)
