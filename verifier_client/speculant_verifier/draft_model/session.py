"""The model drafter's state of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from speculant_graph.types import EMPTY_DRAFT, Draft, Feedback, SequenceStep, SessionOptions
from speculant_verifier.draft_model.passes import CachedSequence
from speculant_verifier.draft_model.tree import DraftTree

FIRST_HIT_RATE = 0.6
_NO_STEP = SequenceStep(-1, (), 0)


@dataclass(eq=False, slots=True)
class Session:
    """One sequence, and its latest step; mutable."""

    options: SessionOptions | None = None
    hit_rate: float = FIRST_HIT_RATE
    """Recent rate at which the model was right."""
    num_unasked: int = 0
    """Steps with a decision since the model last ran."""
    cached: CachedSequence | None = None
    """Its entry in the model's cache."""
    step: SequenceStep = _NO_STEP
    num_tokens: int = 0
    """Number of tokens at this step; the caller's list grows."""
    tree: DraftTree = field(default_factory=lambda: DraftTree(EMPTY_DRAFT))
    """The tree of this step; empty if there was no decision about the model."""
    is_asked: bool = False
    """Whether the model ran in this step."""
    charged_s: float = 0.0
    """Seconds charged to the model's account in this step, which the outcome may still earn back."""
    baseline: frozenset[int] = frozenset()
    """Nodes that this step would have drafted without the model."""
    inner_id: int = 0
    """Id of the n-grams' draft in this step."""
    ngrams_indices: Sequence[int] | None = None
    """Per node of our draft, its index from 1 in the n-grams' draft, or 0 if it is not in it. None: the drafts are the
    same."""

    @property
    def tenant(self) -> str:
        """Its tenant; empty if the caller named none."""
        return (self.options.tenant if self.options is not None else None) or ""

    def begin(self, step: SequenceStep, draft: Draft) -> None:
        """Begin a step for which n-grams have drafted."""
        self.step, self.num_tokens = step, len(step.token_ids)
        self.inner_id, self.ngrams_indices = draft.draft_id, None
        self.tree = DraftTree(EMPTY_DRAFT)
        self.is_asked, self.baseline, self.charged_s = False, frozenset(), 0.0

    def forget_model(self) -> None:
        """Reset the state for another model."""
        self.cached, self.tree, self.is_asked = None, DraftTree(EMPTY_DRAFT), False
        self.hit_rate, self.num_unasked = FIRST_HIT_RATE, 0

    def translated(self, feedback: Feedback | None) -> Feedback | None:
        """Return the target's feedback on our draft, for the nodes that are in the n-grams' draft."""
        if feedback is None or self.ngrams_indices is None:
            return feedback
        if not self.inner_id:
            return None
        indices = [0, *self.ngrams_indices]
        known = [index for index, node in enumerate(feedback.nodes) if node == 0 or indices[node]]
        return Feedback(self.inner_id, [indices[feedback.nodes[index]] for index in known], feedback.rows[known])
