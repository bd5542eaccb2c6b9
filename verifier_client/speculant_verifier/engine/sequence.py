"""A request, and its state while it is decoded."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import LogitsProcessorList

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationMemoryError, SpeculantError
from speculant_graph.types import Feedback, SessionOptions, TokenId
from speculant_verifier.cache.slots import KeysAndValues
from speculant_verifier.records.record import Trace
from speculant_verifier.results import FinishReason, PhaseTimes, TokenLogprobs
from speculant_verifier.rules.teacher_forcing import TargetWrapper
from speculant_verifier.sampling import Sampler
from speculant_verifier.speculation.controller import AcceptanceHistory
from speculant_verifier.structured import Grammar

MOST_PENDING = 8
"""Maximum number of pending tokens that a pass reads together with a draft. If more tokens are pending, they are
prefilled first, like a prompt."""
StopCheck = Callable[[Sequence[TokenId]], int | None]
"""Function that takes newly emitted tokens and returns how many to keep if the text ends within them, otherwise None.
A stop check is stateful, so every token must be passed to it exactly once."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request to continue one prompt."""

    index: int
    """Number by which the caller identifies the request."""
    prompt: tuple[TokenId, ...]
    """Token ids of the prompt, at least one."""
    config: GenerationConfig
    """Generation settings of the request."""
    processors: LogitsProcessorList | None = None
    """Logits processors of transformers, used instead of the processors that ``config`` requires."""
    stop_check: StopCheck | None = None
    """Checks emitted tokens for further reasons to stop, such as a stop text; None: no check."""
    grammar: Grammar | None = None
    """Grammar that constrains the output; None if the output is unconstrained."""
    draft_prefix: tuple[TokenId, ...] = ()
    """Tokens that only the drafter sees, as if they preceded the prompt, so that drafts can copy them."""
    wrap_target: TargetWrapper | None = None
    """Wrapper that replaces the target's token choices, as in teacher forcing; None keeps the target's choices."""
    shared_length: int = 0
    """Length in tokens of the prompt's prefix that later prompts will probably share."""
    refusal: SpeculantError | None = None
    """Error with which the request ends at once, if it is already known to be invalid."""
    session: SessionOptions | None = None
    """Options of the request's drafting session, in addition to the drafter's settings."""
    document: str = ""
    """Name of the document that the prompt belongs to, for the request's record; empty if unknown."""


@dataclass(eq=False, slots=True)
class ActiveSequence:
    """State of a request while it is decoded; mutable, owned by the engine."""

    request: Request
    index: int = field(init=False)
    """Number by which the caller identifies the request. ``index`` and the next four fields are copied from the
    request, because a step reads them often."""
    prompt: tuple[TokenId, ...] = field(init=False)
    """Prompt tokens."""
    config: GenerationConfig = field(init=False)
    """Generation settings of the request."""
    tenant: str = field(init=False)
    """Tenant that owns the sequence's text; empty if the request names none. Caches are separate per tenant, so that
    response times reveal nothing about other tenants."""
    longest: int = field(init=False)
    """Length of prompt and output, in tokens, at which the sequence ends."""
    number: int = 0
    """Number of sequences that arrived earlier."""
    row: int = -1
    """Row in the KV cache; -1 if the sequence has no row."""
    session_id: int = field(default_factory=lambda: secrets.randbits(63) + 1)
    token_ids: list[TokenId] = field(default_factory=list)
    """Prompt and output."""
    num_cached: int = 0
    """Number of tokens whose keys and values are in the KV cache. Tokens after the cached ones are pending, because the
    model has not read them yet. The last pending token is the root of the next draft."""
    num_from_prefix_cache: int = 0
    """Number of prompt tokens whose keys and values came from the prefix cache."""
    windows: dict[int, KeysAndValues] = field(default_factory=dict)
    """Copies of the keys and values of sliding-window layers, by the window's end position."""
    window_stops: tuple[int, ...] = ()
    """Prompt positions at which sliding windows are copied, ascending."""
    sampler: Sampler | None = None
    end_token_ids: frozenset[TokenId] = frozenset()
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)
    feedback: Feedback | None = None
    """Feedback to send to the drafter with the next step."""
    draft_nodes: Sequence[int] = ()
    """For each node of the latest draft, its index in the drafter's response, before some nodes were dropped."""
    has_session: bool = False
    num_shown: int = 0
    """Number of tokens that the sequence had when the drafter last saw it."""
    drafter_problem: str = ""
    """Problem in the request that keeps the drafter from drafting for this sequence; empty if there is none."""
    prefix_key: bytes = b""
    """Key of the sequence's first ``num_keyed`` tokens, used by the logits cache."""
    num_keyed: int = 0
    num_steps: int = 0
    num_steps_without_drafter: int = 0
    num_from_target_cache: int = 0
    num_drafts: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    num_tried: int = 0
    """Number of positions at which a drafted token was verified. Positions after a rejected token are not verified."""
    rolling_acceptance: float | None = None
    """Accepted share of the tried positions over the tenant's latest requests, including this one; set when the request
    ends."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    trace: Trace | None = None
    """Trace for the request's record; None if the request is not recorded."""
    error: SpeculantError | None = None
    times: PhaseTimes = field(default_factory=PhaseTimes)
    arrived_s: float = 0.0
    """Arrival time, by the clock of ``time.perf_counter``."""
    emitted_s: float = 0.0
    """Time at which the latest tokens were emitted; 0 before the first token."""

    def __post_init__(self) -> None:
        """Copy fields from the request."""
        request, session = self.request, self.request.session
        self.index, self.prompt, self.config = request.index, request.prompt, request.config
        self.tenant = "" if session is None else session.tenant or ""
        self.longest = len(request.prompt) + request.config.max_tokens

    @property
    def output(self) -> tuple[TokenId, ...]:
        """Emitted tokens."""
        return tuple(self.token_ids[len(self.prompt) :])

    @property
    def num_emitted(self) -> int:
        """Number of emitted tokens."""
        return len(self.token_ids) - len(self.prompt)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Output of one step for one sequence."""

    sequence: ActiveSequence
    token_ids: tuple[TokenId, ...]
    """Newly emitted tokens; empty only if the sequence ended without a further token."""
    num_accepted: int
    """Number of leading tokens in ``token_ids`` that came from the draft."""
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities of the emitted tokens, one entry per token; empty if not requested."""


def out_of_memory() -> GenerationMemoryError:
    """Return the error with which a request ends if it runs out of memory."""
    return GenerationMemoryError(
        "there was no memory left for this request",
        fix="lower verifier.max_kv_tokens or verifier.max_batch_size, or send shorter prompts",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device or the host ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
