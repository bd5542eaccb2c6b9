"""What clients get. Only fields that were given a value are sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "tool_calls"]


class Answer(BaseModel):
    """Base."""

    model_config = ConfigDict(protected_namespaces=(), use_attribute_docstrings=True)

    def to_json(self) -> str:
        """Return the JSON text."""
        return self.model_dump_json(exclude_unset=True)


class CompletionDetails(Answer):
    """What became of a prediction."""

    accepted_prediction_tokens: int
    """Drafted tokens that were emitted, of each choice at most as many as stand behind the same token as in the
    prediction."""
    rejected_prediction_tokens: int
    """The other tokens of the prediction, for every choice."""


class PromptDetails(Answer):
    """What became of a prompt."""

    cached_tokens: int
    """Those that an earlier request of the tenant began with, too, so that they were not read again for any choice."""


class Usage(Answer):
    """Token counts of a request."""

    prompt_tokens: int
    """Of all prompts; samples share theirs."""
    completion_tokens: int
    """Of all choices, end tokens included."""
    total_tokens: int
    """The sum."""
    prompt_tokens_details: PromptDetails
    """What became of the prompt."""
    completion_tokens_details: CompletionDetails | None = None
    """Of a request with a prediction."""


class Seconds(Answer):
    """Where the time went, in seconds. What a batch does together counts in full for each of its sequences."""

    prefill: float
    """Reading the prompt."""
    draft: float
    """Waiting for drafts."""
    forward: float
    """Forward passes over drafts."""
    verify: float
    """Choosing tokens and applying the rule."""
    commit: float
    """Keeping what was accepted."""
    stall: float
    """Of prefill and forward: waiting for weights that memory has no room for."""
    other: float
    """The rest."""
    first_token: float
    """From admission to the first token."""
    total: float
    """From admission to the last token."""


class Speculation(Answer):
    """How the answer came about; counts are of all choices together."""

    seed: int
    """Seed of the first choice; choice i of a prompt used seed + i."""
    steps: int
    """Forward passes after the prompts."""
    steps_without_drafter: int
    """Steps without a draft because the drafter did not answer."""
    drafted: int
    """Drafted tokens that were verified."""
    accepted: int
    """Drafted tokens that are in the answer."""
    drafts: int
    """Steps that had a draft."""
    from_target_cache: int
    """Tokens without a step: what the model said after their prefix was kept from an earlier one."""
    mean_accepted_tokens: float | None
    """Tokens per step, the model's own included and those from the target cache left out; 1 is plain decoding. Null
    without a step."""
    tree_hit_rate: float
    """Share of the tokens after the first of each step; with the target cache's share, SpecExec's cache hit rate."""
    target_cache_hit_rate: float
    """Share of the tokens that came from the target cache."""
    acceptance_by_depth: list[float]
    """Share of the tokens drafted at depth 1, 2, ... that was accepted."""
    seconds: Seconds
    """Of the choice that took longest."""
    warning: str | None = None
    """Why there were no drafts, if the request is the reason: it names a graph that the drafter does not serve."""


class TopLogprob(Answer):
    """A token and the logarithm of its probability."""

    token: str
    """Its text; 'bytes:' and escapes if it is a part of a character."""
    logprob: float
    """Of the model itself: before temperature and all other settings; -9999 for what is impossible."""
    bytes: list[int]
    """UTF-8."""


class TokenLogprob(TopLogprob):
    """The same of an emitted token."""

    top_logprobs: list[TopLogprob]
    """The most probable tokens, best first."""


class ChatLogprobs(Answer):
    """One entry for every token that counts as a completion token."""

    content: list[TokenLogprob]
    """The entries."""


class CompletionLogprobs(Answer):
    """One entry for every token that counts as a completion token."""

    tokens: list[str]
    """Texts of tokens."""
    token_logprobs: list[float]
    """Their log-probabilities."""
    top_logprobs: list[dict[str, float]]
    """Those of the most probable tokens and of the emitted one."""
    text_offset: list[int]
    """Where in the choice's text they begin, in characters."""


class AnswerFunction(Answer):
    """What is called."""

    name: str | None = None
    """The function's name; in a stream in its first piece."""
    arguments: str
    """JSON text, or a piece of it."""


class AnswerCall(Answer):
    """A call of a tool."""

    index: int | None = None
    """In a stream, which of the answer's calls it is."""
    id: str | None = None
    """Of this call; in a stream in its first piece."""
    type: Literal["function"] | None = None
    """'function'; in a stream in its first piece."""
    function: AnswerFunction
    """The call."""


class AnswerMessage(Answer):
    """The model's message."""

    role: Literal["assistant"]
    """'assistant'."""
    content: str | None
    """The text; of a model with harmony channels the final channel. null if there are calls and no text."""
    reasoning_content: str | None = None
    """Of a model with harmony channels, the others."""
    tool_calls: list[AnswerCall] | None = None
    """Calls of the request's tools, if there are any."""
    refusal: None = None
    """Always null."""


class ChatChoice(Answer):
    """One answer."""

    index: int
    """Its number."""
    message: AnswerMessage
    """The message."""
    logprobs: ChatLogprobs | None
    """If they were asked for."""
    finish_reason: FinishReason
    """'stop' (end token or stop text), 'tool_calls' (the same after a call) or 'length'."""


class ChatCompletion(Answer):
    """Answers to a conversation."""

    id: str
    """Of this answer."""
    object: Literal["chat.completion"]
    """'chat.completion'."""
    created: int
    """Seconds since 1970."""
    model: str
    """The model's name."""
    choices: list[ChatChoice]
    """The answers."""
    usage: Usage
    """Token counts."""
    speculant: Speculation
    """How the answers came about."""


class Delta(Answer):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    """In the first chunk of a choice."""
    content: str | None = None
    """More text."""
    reasoning_content: str | None = None
    """More of the other channels."""
    tool_calls: list[AnswerCall] | None = None
    """More of the calls."""


class ChunkChoice(Answer):
    """What a chunk adds to a choice."""

    index: int
    """The choice."""
    delta: Delta
    """What it adds."""
    logprobs: ChatLogprobs | None
    """Of tokens that came with this chunk."""
    finish_reason: FinishReason | None
    """In the choice's last chunk."""


class ChatChunk(Answer):
    """One event of a chat's stream."""

    id: str
    """The same in all chunks."""
    object: Literal["chat.completion.chunk"]
    """'chat.completion.chunk'."""
    created: int
    """Seconds since 1970."""
    model: str
    """The model's name."""
    choices: list[ChunkChoice]
    """One, or none in the chunk of token counts."""
    usage: Usage | None = None
    """Token counts, if they were asked for: in the last chunk, null before."""
    speculant: Speculation | None = None
    """In the last chunk."""


class CompletionChoice(Answer):
    """One continuation, or in a stream a piece of it."""

    index: int
    """Its number: those of the first prompt come first."""
    text: str
    """The text."""
    logprobs: CompletionLogprobs | None
    """If they were asked for."""
    finish_reason: FinishReason | None
    """'stop' (end token or stop text) or 'length'; null in a stream while it goes on."""


class Completion(Answer):
    """Continuations, or one event of their stream."""

    id: str
    """Of this answer."""
    object: Literal["text_completion"]
    """'text_completion'."""
    created: int
    """Seconds since 1970."""
    model: str
    """The model's name."""
    choices: list[CompletionChoice]
    """The continuations."""
    usage: Usage | None = None
    """Token counts; in a stream only if they were asked for, and null before the last chunk."""
    speculant: Speculation | None = None
    """How the continuations came about; in a stream in the last chunk."""


class Model(Answer):
    """A model that is served."""

    id: str
    """Its name in requests."""
    object: Literal["model"]
    """'model'."""
    created: int
    """When the server started, seconds since 1970."""
    owned_by: str
    """'speculant-graph'."""
    max_model_len: int
    """Most tokens of prompt and answer together."""


class ModelList(Answer):
    """The models."""

    object: Literal["list"]
    """'list'."""
    data: list[Model]
    """One."""


class AdapterInfo(Answer):
    """A draft model with one adapter, or with none."""

    name: str
    """As it was asked for; empty: the draft model without an adapter."""
    sha256: str
    """Of its weights' file; empty without an adapter."""


class DraftModelState(Answer):
    """What drafts, and how it does."""

    names: list[str]
    """Adapters that may be loaded: those of the setting draft_model.adapters."""
    present: AdapterInfo
    """What drafts now."""
    previous: AdapterInfo | None
    """What a rollback would bring back."""
    acceptance: float | None
    """Share of the latest judged tokens that the present one was right about; null before any."""
    judged_tokens: int
    """How many these are, at most 1000: the count begins again with every swap."""
    previous_acceptance: float | None
    """The share of the previous one when it was replaced."""
    automatic_rollbacks: int
    """Adapters that were taken back by the verifier itself, as they were worse than what drafted before them."""
    passes: int
    """Passes of the draft model since the start."""
    passes_s: float
    """Seconds that they took."""


class ErrorDetail(Answer):
    """What went wrong."""

    message: str
    """For people, with what to do."""
    type: str
    """The kind of error."""
    param: str | None
    """The field of the request."""
    code: str | None
    """For programs."""


class ErrorAnswer(Answer):
    """What clients get instead of an answer."""

    error: ErrorDetail
    """What went wrong."""
