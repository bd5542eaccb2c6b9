"""What a generation returns: text, token ids, and how they came about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from speculant_graph.errors import SpeculantError
from speculant_graph.types import TokenId

FinishReason = Literal["stop", "length", "error"]
"""``stop``: an end token or a stop text came. ``length``: ``max_tokens`` or the model's longest context. ``error``: the
request failed, others did not."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's raw logits: before temperature and processors."""

    token_id: TokenId
    """The emitted token."""
    logprob: float
    """Its log-probability."""
    top_token_ids: tuple[TokenId, ...] = ()
    """Most probable tokens, best first."""
    top_logprobs: tuple[float, ...] = ()
    """Theirs."""


@dataclass(slots=True)
class PhaseTimes:
    """Where the time of a request or of an engine went, in seconds.

    A batch's shared work is counted in full for each of its rows.
    """

    prefill_s: float = 0.0
    """Reading the prompt."""
    draft_s: float = 0.0
    """Waiting for drafts."""
    forward_s: float = 0.0
    """Forward passes over drafts."""
    verify_s: float = 0.0
    """Choosing tokens and applying the rule."""
    commit_s: float = 0.0
    """Keeping what was accepted in the cache."""
    stall_s: float = 0.0
    """Of prefill and forward passes, waiting for weights that do not fit into memory; 0 where it holds all."""
    first_token_s: float = 0.0
    """From admission to the first emitted token."""
    total_s: float = 0.0
    """From admission to the last emitted token, without the time between steps, which readers of streams take."""

    @property
    def other_s(self) -> float:
        """The rest, such as the prompts of others that were read meanwhile."""
        named_s = self.prefill_s + self.draft_s + self.forward_s + self.verify_s + self.commit_s
        return max(0.0, self.total_s - named_s)

    def as_dict(self) -> dict[str, float]:
        """Return all of them by name."""
        return {**asdict(self), "other_s": self.other_s}


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The continuation of one prompt."""

    text: str
    """Decoded continuation without the final end token."""
    token_ids: tuple[TokenId, ...]
    """Its token ids, the end token included."""
    prompt_token_ids: tuple[TokenId, ...]
    """The prompt as the model saw it."""
    finish_reason: FinishReason
    """Why it ended."""
    num_steps: int
    """Forward passes after the prompt."""
    num_steps_without_drafter: int
    """Steps that ran without a draft because the drafter did not answer."""
    drafted_by_depth: tuple[int, ...]
    """How many nodes were drafted at depth 1, 2, ..."""
    accepted_by_depth: tuple[int, ...]
    """How many of them were accepted."""
    times: PhaseTimes
    """Where the time went."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, if they were asked for."""
    num_drafts: int = 0
    """Steps that had a draft."""
    num_from_target_cache: int = 0
    """Tokens without a forward pass: the target's logits after their prefix were kept from an earlier one."""
    num_from_prefix_cache: int = 0
    """Tokens of the prompt that were not read, as an earlier request began in the same way."""
    num_tried: int = 0
    """Tokens for which anything was drafted."""
    rolling_acceptance: float | None = None
    """Accepted share of such tokens over the tenant's latest 100 requests, this one included; None without any."""
    sample: int = 0
    """Which sample of its prompt it is, from 0."""
    error: SpeculantError | None = None
    """What went wrong, if the finish reason is ``error``."""
    warning: str = ""
    """Why there were no drafts, if the request is the reason: it names a graph that the drafter does not serve."""

    @property
    def num_drafted(self) -> int:
        """Nodes drafted and verified."""
        return sum(self.drafted_by_depth)

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(self.accepted_by_depth)

    @property
    def num_rejected(self) -> int:
        """Drafted tokens that were not emitted."""
        return self.num_drafted - self.num_accepted

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens, 0 if none were drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def mean_accepted_tokens(self) -> float | None:
        """Tokens emitted per forward pass, the model's own included; 1 is plain decoding. None without a pass.

        Tokens from the target cache are left out: they are no evidence of drafts.
        """
        return (len(self.token_ids) - self.num_from_target_cache) / self.num_steps if self.num_steps else None

    @property
    def num_from_tree(self) -> int:
        """Tokens after the first of each pass: their prefix was in the draft that the pass verified."""
        return max(0, len(self.token_ids) - self.num_from_target_cache - self.num_steps)

    @property
    def tree_hit_rate(self) -> float:
        """Share of the tokens that came from a draft's pass; with the target cache's share, SpecExec's hit rate."""
        return self.num_from_tree / len(self.token_ids) if self.token_ids else 0.0

    @property
    def target_cache_hit_rate(self) -> float:
        """Share of the tokens that came from the target cache."""
        return self.num_from_target_cache / len(self.token_ids) if self.token_ids else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second, prompt reading included."""
        return len(self.token_ids) / self.times.total_s if self.times.total_s else 0.0


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Tokens that one step emitted for one prompt."""

    prompt_index: int
    """Which prompt of the call."""
    token_ids: tuple[TokenId, ...]
    """Emitted tokens; empty only in a last event."""
    num_accepted: int
    """How many of them, from the first, were drafted; the rest are the model's own."""
    text: str
    """Text that became certain; incomplete characters wait for the next step."""
    accepted_text: str
    """The part of ``text``, from its start, that came from accepted tokens."""
    result: GenerationResult | None
    """Set in the last event of a sample."""
    sample: int = 0
    """Which sample of the prompt."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, if they were asked for."""
