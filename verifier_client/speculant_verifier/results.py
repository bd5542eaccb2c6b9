"""The results of a generation: text, token ids, and statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from speculant_graph.errors import SpeculantError
from speculant_graph.types import TokenId

FinishReason = Literal["stop", "length", "error"]
"""Why a generation ended: ``stop`` means an end token or a stop text, ``length`` means ``max_tokens`` or the model's
context length, and ``error`` means that the request failed."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the model's raw logits, before temperature and processors."""

    token_id: TokenId
    """The emitted token."""
    logprob: float
    """Log-probability of the emitted token."""
    top_token_ids: tuple[TokenId, ...] = ()
    """The most probable tokens at this position, best first."""
    top_logprobs: tuple[float, ...] = ()
    """Log-probabilities of ``top_token_ids``."""


@dataclass(slots=True)
class PhaseTimes:
    """Seconds that a request or an engine has spent in each phase.

    Time that a batch spends on shared work counts in full for each of its rows.
    """

    prefill_s: float = 0.0
    """Seconds for the prefill of the prompt."""
    draft_s: float = 0.0
    """Seconds spent waiting for drafts."""
    forward_s: float = 0.0
    """Seconds for forward passes over drafts."""
    verify_s: float = 0.0
    """Seconds for choosing tokens and applying the verification rule."""
    commit_s: float = 0.0
    """Seconds for committing accepted tokens to the cache."""
    stall_s: float = 0.0
    """Seconds spent waiting for weights that do not fit into memory, as part of prefill and forward passes; 0 if all
    weights fit."""
    first_token_s: float = 0.0
    """Seconds from admission to the first emitted token."""
    total_s: float = 0.0
    """Seconds from admission to the last emitted token, without the time that stream readers take between steps."""

    @property
    def other_s(self) -> float:
        """Seconds outside the named phases, such as waiting for the prefill of other prompts."""
        named_s = self.prefill_s + self.draft_s + self.forward_s + self.verify_s + self.commit_s
        return max(0.0, self.total_s - named_s)

    def as_dict(self) -> dict[str, float]:
        """Return all times by name."""
        return {**asdict(self), "other_s": self.other_s}


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The continuation of one prompt."""

    text: str
    """Text of the continuation, without the final end token."""
    token_ids: tuple[TokenId, ...]
    """Token ids of the continuation, including the end token."""
    prompt_token_ids: tuple[TokenId, ...]
    """The prompt's token ids."""
    finish_reason: FinishReason
    """Why the continuation ended."""
    num_steps: int
    """Number of forward passes after the prompt."""
    num_steps_without_drafter: int
    """Number of steps without a draft because the drafter did not respond."""
    drafted_by_depth: tuple[int, ...]
    """Number of drafted nodes at depths 1, 2, ..."""
    accepted_by_depth: tuple[int, ...]
    """Number of accepted nodes at depths 1, 2, ..."""
    times: PhaseTimes
    """Time by phase."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities at every token's position, if requested."""
    num_drafts: int = 0
    """Number of steps with a draft."""
    num_from_target_cache: int = 0
    """Number of tokens emitted from the target's cached logits, without a forward pass."""
    num_from_prefix_cache: int = 0
    """Number of prompt tokens reused from an earlier request with the same prefix."""
    request_id: str = ""
    """The id of the request in the records (:attr:`~speculant_verifier.records.record.RequestRecord.request_id`)."""
    num_tried: int = 0
    """Number of output positions for which tokens were drafted."""
    rolling_acceptance: float | None = None
    """Of the positions with drafted tokens in the tenant's latest 100 requests, including this one, the share with an
    accepted token; None if nothing was drafted."""
    sample: int = 0
    """Index of the sample among the samples of its prompt, from 0."""
    error: SpeculantError | None = None
    """The error if the finish reason is ``error``."""
    warning: str = ""
    """Why the request got no drafts, if it names a graph that the drafter does not serve; empty otherwise."""

    @property
    def num_drafted(self) -> int:
        """Number of nodes that were drafted and verified."""
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
        """Tokens emitted per forward pass, including the target's own tokens (1: plain decoding; None: no pass).

        Tokens from the target cache are excluded, because they do not come from drafts.
        """
        return (len(self.token_ids) - self.num_from_target_cache) / self.num_steps if self.num_steps else None

    @property
    def num_from_tree(self) -> int:
        """Number of tokens emitted after an accepted draft token: all except the first token of each pass."""
        return max(0, len(self.token_ids) - self.num_from_target_cache - self.num_steps)

    @property
    def tree_hit_rate(self) -> float:
        """``num_from_tree`` as a share of all emitted tokens.

        The sum of this share and ``target_cache_hit_rate`` is SpecExec's hit rate.
        """
        return self.num_from_tree / len(self.token_ids) if self.token_ids else 0.0

    @property
    def target_cache_hit_rate(self) -> float:
        """Share of the emitted tokens that came from the target cache."""
        return self.num_from_target_cache / len(self.token_ids) if self.token_ids else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second of total time, which includes prefill."""
        return len(self.token_ids) / self.times.total_s if self.times.total_s else 0.0


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Tokens that one step emitted for one prompt."""

    prompt_index: int
    """Index of the prompt in the call."""
    token_ids: tuple[TokenId, ...]
    """Emitted tokens; only the last event of a sample may have none."""
    num_accepted: int
    """Number of tokens at the start of ``token_ids`` that were drafted; the target itself chose the others."""
    text: str
    """Text that became final in this step; incomplete characters wait for the next step."""
    accepted_text: str
    """Beginning of ``text`` that came from accepted tokens."""
    result: GenerationResult | None
    """Result of the sample in its last event; None in all earlier events."""
    sample: int = 0
    """Index of the sample among the samples of its prompt."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities at every token's position, if requested."""
