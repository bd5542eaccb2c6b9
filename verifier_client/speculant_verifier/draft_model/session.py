"""State of one sequence in the model drafter."""

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
    """Mutable state of one sequence and its latest step."""

    options: SessionOptions | None = None
    hit_rate: float = FIRST_HIT_RATE
    """Share of recent tokens that the model ranked first."""
    num_unasked: int = 0
    """Number of steps since the model's last run, counting only steps in which it could have run."""
    cached: CachedSequence | None = None
    """The sequence's entry in the draft model's KV cache."""
    step: SequenceStep = _NO_STEP
    num_tokens: int = 0
    """Number of tokens that the sequence had at this step; stored because the caller's token list grows."""
    tree: DraftTree = field(default_factory=lambda: DraftTree(EMPTY_DRAFT))
    """Draft tree of the latest step; empty if the model could not run."""
    is_asked: bool = False
    """Whether the draft model ran in the latest step."""
    charged_s: float = 0.0
    """Seconds that the latest step charged to the model's time account; the step's accepted tokens may still earn them
    back."""
    baseline: frozenset[int] = frozenset()
    """Nodes that the latest step would have drafted without the draft model."""
    inner_id: int = 0
    """Id of the n-gram draft in the latest step."""
    ngrams_indices: Sequence[int] | None = None
    """For each drafted node, its index in the n-gram draft, counted from 1; 0 if the n-gram draft lacks the node. None
    means that the draft equals the n-gram draft."""

    @property
    def tenant(self) -> str:
        """The sequence's tenant; empty if the caller set none."""
        return (self.options.tenant if self.options is not None else None) or ""

    def begin(self, step: SequenceStep, draft: Draft) -> None:
        """Begin a step from the n-gram draft."""
        self.step, self.num_tokens = step, len(step.token_ids)
        self.inner_id, self.ngrams_indices = draft.draft_id, None
        self.tree = DraftTree(EMPTY_DRAFT)
        self.is_asked, self.baseline, self.charged_s = False, frozenset(), 0.0

    def forget_model(self) -> None:
        """Reset the state, because the model must read the sequence again, or another model drafts from now on."""
        self.cached, self.tree, self.is_asked = None, DraftTree(EMPTY_DRAFT), False
        self.hit_rate, self.num_unasked = FIRST_HIT_RATE, 0

    def translated(self, feedback: Feedback | None) -> Feedback | None:
        """Return the target's feedback, restricted to the nodes of the n-gram draft."""
        if feedback is None or self.ngrams_indices is None:
            return feedback
        if not self.inner_id:
            return None
        indices = [0, *self.ngrams_indices]
        known = [index for index, node in enumerate(feedback.nodes) if node == 0 or indices[node]]
        return Feedback(self.inner_id, [indices[feedback.nodes[index]] for index in known], feedback.rows[known])
