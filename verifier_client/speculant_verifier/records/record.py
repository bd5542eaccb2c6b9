"""What is recorded of a request. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field

from speculant_graph.types import TokenId

Recorded = Annotated[TokenId, Field(ge=0)]
"""A token's id."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request: all that a draft model can learn from it.

    Each field per position has an entry for every output token.
    """

    request_id: str
    """Which request."""
    time_s: float
    """When it ended, seconds since 1970."""
    tenant: str
    """Whose text it is."""
    target: str
    """Name of the model that wrote it."""
    tokenizer: str
    """Digest of its tokenizer: token ids mean nothing to another one."""
    draft_model: str
    """Name of the draft model; empty if there was none."""
    adapter: str
    """Digest of the draft model's adapter; empty if it had none."""
    strategy: str
    """How drafts were made."""
    rule: str
    """By which rule they were verified."""
    temperature: float
    """What the target's tokens were drawn with; 0 is greedy."""
    seed: int
    """Seed of the request."""
    prompt: tuple[Recorded, ...]
    """Its prompt."""
    output: tuple[Recorded, ...]
    """What the target wrote, an end token included."""
    drafted: tuple[tuple[Recorded, ...], ...]
    """Per position the tokens that were drafted after the tokens before it, the drafter's best first; of those behind a
    rejected token none was judged, so they are not here. Empty where nothing was drafted."""
    sources: tuple[tuple[str, ...], ...]
    """Per position and drafted token what proposed it: 'ngrams', 'model', 'both', or the strategy's name."""
    accepted: tuple[bool, ...]
    """Per position whether the output's token was drafted, and so came without a pass of its own."""
    top_token_ids: tuple[tuple[Recorded, ...], ...]
    """Per position the target's most probable tokens by its raw logits, before temperature and the like, best first.
    Empty where they are not known, as the token came from ``verifier.target_cache``."""
    top_logprobs: tuple[tuple[float, ...], ...]
    """Their log-probabilities."""
    num_passes: int
    """Passes of the target after the prompt."""
    pass_s: float
    """Mean seconds that they took; 0 without one. Of a batch a pass is for all of its requests."""
    is_failure: bool
    """Whether a smaller share of its tokens than ``record.threshold`` was drafted."""
    reservoir_key: float
    """A random number in [0, 1): of the requests of a tenant that were no failures, those with the smallest ones are
    the replay buffer. So it is a uniform sample of all of them, whatever was written when."""
    schema_version: Literal[1] = 1
    """Version of this record."""

    @property
    def largest_id(self) -> TokenId:
        """The largest id of a token that can be trained on, -1 without any."""
        return max(chain(self.prompt, self.output, *self.top_token_ids), default=-1)

    @property
    def drafted_share(self) -> float:
        """Share of the output that was drafted."""
        return sum(self.accepted) / len(self.output) if self.output else 0.0
