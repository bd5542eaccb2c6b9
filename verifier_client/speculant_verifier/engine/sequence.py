"""A request, and the sequence that it becomes while it is decoded."""

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
"""Pending tokens that are read together with a draft; more of them are read before it, like a prompt."""
StopCheck = Callable[[Sequence[TokenId]], int | None]
"""Takes newly emitted tokens and returns how many of them stay if the text ends with them, or None. It keeps count of
them, so every token is passed once."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue."""

    index: int
    """The caller's number for it."""
    prompt: tuple[TokenId, ...]
    """Token ids, at least one."""
    config: GenerationConfig
    """How tokens are chosen."""
    processors: LogitsProcessorList | None = None
    """Logits processors of transformers instead of those that the settings ask for."""
    stop_check: StopCheck | None = None
    """Finds the end of the text by its characters."""
    grammar: Grammar | None = None
    """Form of the output."""
    draft_prefix: tuple[TokenId, ...] = ()
    """Tokens that drafts come from as if they stood before the prompt; the model does not see them."""
    wrap_target: TargetWrapper | None = None
    """Replaces the model's choices, as teacher forcing does; None: the model's own count."""
    shared_length: int = 0
    """Tokens at the beginning of the prompt that other prompts will probably begin with, too."""
    refusal: SpeculantError | None = None
    """Why it can't be decoded, if that is known already: it ends with this error."""
    session: SessionOptions | None = None
    """Options of its session with the drafter besides the drafter's own settings."""
    document: str = ""
    """What its prompt is a part of, for its record; empty if that is unknown."""


@dataclass(eq=False, slots=True)
class ActiveSequence:
    """One request while it is decoded; mutable, owned by the engine."""

    request: Request
    index: int = field(init=False)
    """The caller's number. This and the next ones are the request's: a step reads them in many places."""
    prompt: tuple[TokenId, ...] = field(init=False)
    """Prompt tokens."""
    config: GenerationConfig = field(init=False)
    """How tokens are chosen."""
    tenant: str = field(init=False)
    """Whose text it is: how soon an answer comes must not reveal to a tenant what another one has sent."""
    longest: int = field(init=False)
    """Tokens of prompt and output at which it ends by its limit."""
    number: int = 0
    """How many came before it."""
    row: int = -1
    """Its row of the cache; -1 if it has none."""
    session_id: int = field(default_factory=lambda: secrets.randbits(63) + 1)
    token_ids: list[TokenId] = field(default_factory=list)
    """Prompt and output."""
    num_cached: int = 0
    """Tokens whose keys and values are in the cache; those after them are pending: the model has not read them, and the
    last one is the root of the next draft."""
    num_from_prefix_cache: int = 0
    """Of these, tokens of the prompt that an earlier sequence had read."""
    windows: dict[int, KeysAndValues] = field(default_factory=dict)
    """Copies of what sliding layers held before a position."""
    window_stops: tuple[int, ...] = ()
    """Positions in the prompt, in order, where such copies are wanted."""
    sampler: Sampler | None = None
    end_token_ids: frozenset[TokenId] = frozenset()
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)
    feedback: Feedback | None = None
    """What the drafter gets with the next step."""
    draft_nodes: Sequence[int] = ()
    """Per node of the latest draft, its index in the drafter's message, of which nodes may have been left out."""
    has_session: bool = False
    drafter_problem: str = ""
    """Why the drafter has nothing for it, if the request is the reason."""
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
    """Positions for which a token was drafted; those after a rejected token were not judged and do not count."""
    rolling_acceptance: float | None = None
    """Accepted share of tried positions over the tenant's latest requests, this one included, once it has ended."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    trace: Trace | None = None
    """What is to be recorded of it; None if it is not recorded."""
    error: SpeculantError | None = None
    times: PhaseTimes = field(default_factory=PhaseTimes)
    arrived_s: float = 0.0
    """When it came, by the clock of ``time.perf_counter``."""
    emitted_s: float = 0.0
    """When its latest tokens were emitted; 0 before the first."""

    def __post_init__(self) -> None:
        """Take the request's fields."""
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
    """What a step emitted for one sequence."""

    sequence: ActiveSequence
    token_ids: tuple[TokenId, ...]
    """Empty only if the sequence ended without a further token."""
    num_accepted: int
    """How many of the tokens, from the first, were drafted."""
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, if they were asked for."""


def out_of_memory() -> GenerationMemoryError:
    """Return why a request ends that memory did not suffice for."""
    return GenerationMemoryError(
        "there was no memory left for this request",
        fix="lower verifier.max_kv_tokens or verifier.max_batch_size, or send shorter prompts",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch means that a device, or this machine, had no memory left."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
