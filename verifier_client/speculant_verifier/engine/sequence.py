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
"""Maximum number of pending tokens that a pass reads together with a draft; more are prefilled first, like a prompt."""
StopCheck = Callable[[Sequence[TokenId]], int | None]
"""Takes newly emitted tokens and returns how many to keep if the text ends within them, otherwise None. It is stateful,
so pass every token once."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue."""

    index: int
    """The caller's number for the request."""
    prompt: tuple[TokenId, ...]
    """Token ids, at least one."""
    config: GenerationConfig
    """How tokens are chosen."""
    processors: LogitsProcessorList | None = None
    """Logits processors of transformers, which replace the processors of the settings."""
    stop_check: StopCheck | None = None
    """Finds the end of the text from its characters."""
    grammar: Grammar | None = None
    """Form of the output."""
    draft_prefix: tuple[TokenId, ...] = ()
    """Tokens that drafts come from as if they stood before the prompt; the model does not see them."""
    wrap_target: TargetWrapper | None = None
    """Replaces the target's choices, as in teacher forcing; None keeps them."""
    shared_length: int = 0
    """Tokens of the prompt's prefix that later prompts will probably share."""
    refusal: SpeculantError | None = None
    """Error with which the request ends at once, if it is already known to be invalid."""
    session: SessionOptions | None = None
    """Options of its drafting session, in addition to the drafter's settings."""
    document: str = ""
    """Name of the document that the prompt belongs to, for its record; empty if unknown."""


@dataclass(eq=False, slots=True)
class ActiveSequence:
    """State of a request while it is decoded; mutable, owned by the engine."""

    request: Request
    index: int = field(init=False)
    """The caller's number. This and the next four fields come from the request, because a step reads them often."""
    prompt: tuple[TokenId, ...] = field(init=False)
    """Prompt tokens."""
    config: GenerationConfig = field(init=False)
    """How tokens are chosen."""
    tenant: str = field(init=False)
    """Owner of the text. Caches are separate per tenant, so that response times reveal nothing about other tenants."""
    longest: int = field(init=False)
    """Length of prompt and output, in tokens, at which the sequence ends."""
    number: int = 0
    """Number of sequences that arrived before it."""
    row: int = -1
    """Row in the KV cache; -1 if it has none."""
    session_id: int = field(default_factory=lambda: secrets.randbits(63) + 1)
    token_ids: list[TokenId] = field(default_factory=list)
    """Prompt and output."""
    num_cached: int = 0
    """Tokens whose keys and values are in the cache. Later tokens are pending: the model has not read them, and the
    last one is the root of the next draft."""
    num_from_prefix_cache: int = 0
    """Prompt tokens whose keys and values came from the prefix cache."""
    windows: dict[int, KeysAndValues] = field(default_factory=dict)
    """Copies of the keys and values of sliding-window layers, by the window's end position."""
    window_stops: tuple[int, ...] = ()
    """Prompt positions at which to copy windows, ascending."""
    sampler: Sampler | None = None
    end_token_ids: frozenset[TokenId] = frozenset()
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)
    feedback: Feedback | None = None
    """Feedback to send to the drafter with the next step."""
    draft_nodes: Sequence[int] = ()
    """For each node of the latest draft, its index in the drafter's response; some nodes of a response are dropped."""
    has_session: bool = False
    drafter_problem: str = ""
    """Why the drafter can't draft for it, if the request is the reason."""
    prefix_key: bytes = b""
    """Key of the first ``num_keyed`` tokens in the logits cache."""
    num_keyed: int = 0
    num_steps: int = 0
    num_steps_without_drafter: int = 0
    num_from_target_cache: int = 0
    num_drafts: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    num_tried: int = 0
    """Positions with a drafted token; positions after a rejected token were not verified and do not count."""
    rolling_acceptance: float | None = None
    """Accepted share of tried positions over the tenant's latest requests, including this one; set when it ends."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    trace: Trace | None = None
    """Trace for its record; None if it is not recorded."""
    error: SpeculantError | None = None
    times: PhaseTimes = field(default_factory=PhaseTimes)
    arrived_s: float = 0.0
    """Arrival time, by the clock of ``time.perf_counter``."""
    emitted_s: float = 0.0
    """Time of its latest emitted tokens; 0 before the first."""

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
    """Empty only if the sequence ended without a further token."""
    num_accepted: int
    """Number of leading tokens that were drafted."""
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, if requested."""


def out_of_memory() -> GenerationMemoryError:
    """Return the error of a request that ran out of memory."""
    return GenerationMemoryError(
        "there was no memory left for this request",
        fix="lower verifier.max_kv_tokens or verifier.max_batch_size, or send shorter prompts",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device or the host ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
