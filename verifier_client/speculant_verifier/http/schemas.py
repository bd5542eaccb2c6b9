"""What clients send. Unknown fields are refused, and null is as if a field were not there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from speculant_graph.types import RuleName

_MOST_PROMPTS = 1024
_MOST_BIASES = 1024
_MOST_COMPLAINTS = 8
"""Lists end at the first wrong item, and of unknown names a few are looked at: a body that is wrong all over must not
hold up others."""


class Schema(BaseModel):
    """Base: no conversions, no unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=(), use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        strange = [name for name in given if name not in cls.model_fields]
        for name in strange[_MOST_COMPLAINTS:]:
            del given[name]
        return given


def _not_huge(values: object) -> object:
    if isinstance(values, dict) and len(values) > _MOST_BIASES:
        raise ValueError("too many")
    return values


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Zero = Annotated[float, Field(ge=0, le=0)]
_Word = Annotated[str, Field(min_length=1, max_length=256)]
_StopText = Annotated[str, Field(min_length=1, max_length=1024)]
_StopTexts = Annotated[list[_StopText], Field(max_length=16, fail_fast=True)]
_Stop = Annotated[_StopTexts, BeforeValidator(_as_list, json_schema_input_type=_StopText | _StopTexts)]
_TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_Biases = Annotated[dict[_TokenName, _Bias], BeforeValidator(_not_huge), Field(max_length=_MOST_BIASES)]
_Tokens = Annotated[list[_Token], Field(min_length=1, fail_fast=True)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_NumTop = Annotated[int, Field(ge=0, le=20)]
_NumTokens = Annotated[int, Field(ge=1, lt=2**31)]


class SpeculantOptions(Schema):
    """How this request is speculated for."""

    rule: RuleName | None = None
    """How drafts are verified; 'follow' makes the text a function of prompt, settings and seed."""
    speculation: Literal["auto", "on", "off"] | None = None
    """Whether drafts are used."""
    node_budget: Annotated[int, Field(ge=0)] | None = None
    """Most tokens drafted per step, if fewer than the server's; 0 uses no drafts."""
    max_depth: Annotated[int, Field(ge=1, le=255)] | None = None
    """Longest path drafted, instead of the server's."""
    draft_temperature: Annotated[float, Field(gt=0)] | None = None
    """What drafts are drawn with, instead of the server's temperature."""
    tenant: _Name | None = None
    """Whose text it is: drafts come from what this tenant's earlier requests accepted, and from nobody else's."""
    graph: _Name | None = None
    """The drafter's graph of this name, instead of the server's choice."""
    learn: bool | None = None
    """Whether the tenant's later requests profit from what this one accepts."""


class StreamOptions(Schema):
    """What a stream holds besides text."""

    include_usage: bool = False
    """End with a chunk that has no choices and the token counts of all of them."""


class TextFormat(Schema):
    """The only response format."""

    type: Literal["text"]
    """'text'."""


class GenerationRequest(Schema):
    """What both endpoints take."""

    model: str
    """The model's name, as /v1/models says it."""
    stream: bool = False
    """Send server-sent events as text comes."""
    stream_options: StreamOptions | None = None
    """What a stream holds besides text."""
    max_tokens: _NumTokens | None = None
    """Most new tokens."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """0 takes the most probable token."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Keep the most probable tokens that hold this mass."""
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Samples of each prompt; sample i uses the seed + i."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the random stream; without one the server draws one and says it."""
    stop: _Stop | None = None
    """End before any of these texts."""
    logit_bias: _Biases | None = None
    """Added to the logits of tokens, by token id."""
    user: str | None = None
    """Ignored."""
    presence_penalty: _Zero | None = None
    """0 only."""
    frequency_penalty: _Zero | None = None
    """0 only."""
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """Keep the k most probable tokens; 0 and -1 keep all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Drop tokens less probable than this share of the most probable one."""
    repetition_penalty: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Above 1 tokens of the sequence so far become less probable."""
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Fewest new tokens before an end token may come."""
    ignore_eos: bool = False
    """Go on after the model's end tokens."""
    stop_token_ids: Annotated[list[_Token], Field(max_length=128, fail_fast=True)] | None = None
    """Tokens that end the text, besides the model's own."""
    bad_words: Annotated[list[_Word], Field(max_length=128, fail_fast=True)] | None = None
    """Never emit these texts."""
    speculant: SpeculantOptions | None = None
    """How this request is speculated for."""


class TextPart(Schema):
    """A part of a message's content."""

    type: Literal["text"]
    """'text'."""
    text: str
    """The text."""


class ChatMessage(Schema):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks."""
    content: str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)]
    """What is said; the texts of parts are joined by line feeds."""
    name: str | None = None
    """For chat templates that know names."""
    reasoning_content: str | None = None
    """What the model thought before an answer, for chat templates that want it."""

    def for_template(self) -> dict[str, str]:
        """Return what the chat template gets."""
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return {**self.model_dump(exclude_none=True, include={"role", "name", "reasoning_content"}), "content": content}


class ChatRequest(GenerationRequest):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    """From the first to the latest."""
    max_completion_tokens: _NumTokens | None = None
    """The newer name of max_tokens."""
    logprobs: bool = False
    """Return the log-probability of every token."""
    top_logprobs: _NumTop | None = None
    """And those of so many most probable ones."""
    response_format: TextFormat | None = None
    """Text only."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """How long to think, for models whose chat template takes it."""


class CompletionRequest(GenerationRequest):
    """Text to continue."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=_MOST_PROMPTS, fail_fast=True)]
        | _Tokens
        | Annotated[list[_Tokens], Field(min_length=1, max_length=_MOST_PROMPTS, fail_fast=True)]
    )
    """Text, a list of texts, token ids, or a list of lists of token ids."""
    logprobs: _NumTop | None = None
    """Return the log-probability of every token and of so many most probable ones."""
    echo: Literal[False] = False
    """false only."""
    best_of: Annotated[int, Field(ge=1, le=1024)] | None = None
    """The same as n only."""

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts one by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]
