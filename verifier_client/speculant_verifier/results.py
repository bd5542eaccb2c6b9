"""The results of a generation: text, token ids, and statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from speculant_graph.errors import SpeculantError
from speculant_graph.types import TokenId

FinishReason = Literal["stop", "length", "error"]
"""``stop``: an end token or a stop text. ``length``: ``max_tokens`` or the model's context length. ``error``: the
request failed."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the model's raw logits, before temperature and processors."""

    token_id: TokenId
    """The emitted token."""
    logprob: float
    """Its log-probability."""
    top_token_ids: tuple[TokenId, ...] = ()
    """The most probable tokens, best first."""
    top_logprobs: tuple[float, ...] = ()
    """Their log-probabilities."""


@dataclass(slots=True)
class PhaseTimes:
    """Time of a request or an engine by phase, in seconds.

    Work shared by a batch counts in full for each row.
    """

    prefill_s: float = 0.0
    """Prefill of the prompt."""
    draft_s: float = 0.0
    """Waiting for drafts."""
    forward_s: float = 0.0
    """Forward passes over drafts."""
    verify_s: float = 0.0
    """Choosing tokens and applying the verification rule."""
    commit_s: float = 0.0
    """Committing accepted tokens to the cache."""
    stall_s: float = 0.0
    """Waiting for weights that do not fit into memory, as part of prefill and forward passes; 0 if all fit."""
    first_token_s: float = 0.0
    """From admission to the first emitted token."""
    total_s: float = 0.0
    """From admission to the last emitted token, excluding time that readers of streams take between steps."""

    @property
    def other_s(self) -> float:
        """Remaining time, such as prefill of other prompts."""
        named_s = self.prefill_s + self.draft_s + self.forward_s + self.verify_s + self.commit_s
        return max(0.0, self.total_s - named_s)

    def as_dict(self) -> dict[str, float]:
        """Return all times by name."""
        return {**asdict(self), "other_s": self.other_s}


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The continuation of one prompt."""

    text: str
    """Decoded continuation without the final end token."""
    token_ids: tuple[TokenId, ...]
    """Its token ids, including the end token."""
    prompt_token_ids: tuple[TokenId, ...]
    """The prompt's token ids."""
    finish_reason: FinishReason
    """Why it ended."""
    num_steps: int
    """Number of forward passes after the prompt."""
    num_steps_without_drafter: int
    """Number of steps without a draft because the drafter did not respond."""
    drafted_by_depth: tuple[int, ...]
    """Number of drafted nodes at depths 1, 2, ..."""
    accepted_by_depth: tuple[int, ...]
    """Number of accepted nodes by depth."""
    times: PhaseTimes
    """Time by phase."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, if requested."""
    num_drafts: int = 0
    """Number of steps with a draft."""
    num_from_target_cache: int = 0
    """Number of tokens emitted from the target's cached logits, without a forward pass."""
    num_from_prefix_cache: int = 0
    """Number of prompt tokens reused from an earlier request with the same prefix."""
    num_tried: int = 0
    """Number of positions with drafted tokens."""
    rolling_acceptance: float | None = None
    """Acceptance rate of such positions over the tenant's latest 100 requests, including this one; None without any."""
    sample: int = 0
    """Index of the sample for its prompt, from 0."""
    error: SpeculantError | None = None
    """The error if the finish reason is ``error``."""
    warning: str = ""
    """Why the request got no drafts, if it names a graph that the drafter does not serve; empty otherwise."""

    @property
    def num_drafted(self) -> int:
        """Number of drafted and verified nodes."""
        return sum(self.drafted_by_depth)

    @property
    def num_accepted(self) -> int:
        """Number of drafted tokens that were emitted."""
        return sum(self.accepted_by_depth)

    @property
    def num_rejected(self) -> int:
        """Number of drafted tokens that were not emitted."""
        return self.num_drafted - self.num_accepted

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens; 0 if none were drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def mean_accepted_tokens(self) -> float | None:
        """Tokens emitted per forward pass, including the target's own token; 1 is plain decoding. None without a pass.

        Tokens from the target cache are excluded, because they do not come from drafts.
        """
        return (len(self.token_ids) - self.num_from_target_cache) / self.num_steps if self.num_steps else None

    @property
    def num_from_tree(self) -> int:
        """Number of tokens after the first of each pass: their prefix was in the verified draft."""
        return max(0, len(self.token_ids) - self.num_from_target_cache - self.num_steps)

    @property
    def tree_hit_rate(self) -> float:
        """Share of the tokens counted by ``num_from_tree``; with the target cache's share, SpecExec's hit rate."""
        return self.num_from_tree / len(self.token_ids) if self.token_ids else 0.0

    @property
    def target_cache_hit_rate(self) -> float:
        """Share of the tokens from the target cache."""
        return self.num_from_target_cache / len(self.token_ids) if self.token_ids else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second, including prefill."""
        return len(self.token_ids) / self.times.total_s if self.times.total_s else 0.0


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Tokens that one step emitted for one prompt."""

    prompt_index: int
    """Index of the prompt in the call."""
    token_ids: tuple[TokenId, ...]
    """Emitted tokens; empty only in a last event."""
    num_accepted: int
    """Number of leading tokens that were drafted; the rest are the target's own."""
    text: str
    """Newly final text; incomplete characters wait for the next step."""
    accepted_text: str
    """The part of ``text``, from its start, that came from accepted tokens."""
    result: GenerationResult | None
    """Set in the last event of a sample."""
    sample: int = 0
    """Index of the prompt's sample."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, if requested."""
