"""The state of one sequence in a drafter with a language model, and of a step of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculant_graph.config import DraftConfig
from speculant_graph.types import Draft, Feedback, SequenceStep, SessionOptions, TokenId
from speculant_verifier.draft_model.passes import CachedSequence
from speculant_verifier.draft_model.tree import DraftTree

_FIRST_HIT_RATE = 0.6
_HIT_SHARE = 0.12
"""What one outcome counts in the rate of a sequence."""


@dataclass(eq=False, slots=True)
class DraftSession:
    """One sequence; mutable."""

    options: SessionOptions | None = None
    hit_rate: float = _FIRST_HIT_RATE
    """How often the model was right lately."""
    num_unasked: int = 0
    """Steps that were weighed since the model was asked last."""
    cached: CachedSequence | None = None
    """What the model has read of it."""
    num_tokens: int = 0
    """Tokens it had at its latest step."""
    text: Sequence[TokenId] = ()
    """These."""
    tree: DraftTree | None = None
    """Of its latest step, if the model was weighed in it."""
    is_asked: bool = False
    """Whether the model was asked in that step."""
    charged_s: float = 0.0
    """Seconds of that step that were taken from what the model may spend, and that its outcome may still earn back."""
    baseline: frozenset[int] = frozenset()
    """Nodes that would have been drafted without the model then."""
    inner_id: int = 0
    """The n-grams' draft of that step."""
    ngrams_indices: Sequence[int] | None = None
    """Per node of our draft, its index from 1 in the n-grams' draft, or 0 if it is not of it. None: it is theirs."""

    @property
    def tenant(self) -> str:
        """Whose text it is; empty if the caller named none."""
        return (self.options.tenant if self.options is not None else None) or ""

    def begin(self, step: SequenceStep, draft: Draft) -> None:
        """Begin a step for which n-grams have drafted."""
        self.num_tokens, self.text = len(step.token_ids), step.token_ids
        self.inner_id, self.ngrams_indices = draft.draft_id, None
        self.tree, self.is_asked, self.baseline, self.charged_s = None, False, frozenset(), 0.0

    def forget_model(self) -> None:
        """Begin anew with another model."""
        self.cached, self.tree = None, None
        self.hit_rate, self.num_unasked = _FIRST_HIT_RATE, 0

    def note_hits(self, hits: Sequence[bool]) -> None:
        """Note whether the model was right, node by node."""
        for is_right in hits:
            self.hit_rate += _HIT_SHARE * (is_right - self.hit_rate)

    def translated(self, feedback: Feedback | None) -> Feedback | None:
        """Return the target's feedback on our draft, as far as its nodes are of the n-grams' draft."""
        if feedback is None or self.ngrams_indices is None:
            return feedback
        if not self.inner_id:
            return None
        indices = [0, *self.ngrams_indices]
        known = [index for index, node in enumerate(feedback.nodes) if node == 0 or indices[node]]
        return Feedback(self.inner_id, [indices[feedback.nodes[index]] for index in known], feedback.rows[known])


@dataclass(frozen=True, slots=True)
class WantedDraft:
    """A step of a sequence, and what is known of it."""

    step: SequenceStep
    session: DraftSession
    config: DraftConfig

    @property
    def tree(self) -> DraftTree:
        """That of the step, in which the model is weighed."""
        assert self.session.tree is not None
        return self.session.tree

    @property
    def budget(self) -> int:
        """Most nodes."""
        return self.step.node_budget

    @property
    def max_depth(self) -> int:
        """Of these."""
        return min(self.budget, self.step.max_depth or self.config.max_depth)
