"""Request objects of OpenAI's API. A field with the value null counts as absent.

:mod:`speculant_verifier.http.fields` describes the treatment of unknown fields.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from speculant_graph.config import DraftConfig
from speculant_graph.strategies import READ_BY
from speculant_graph.types import RuleName
from speculant_verifier.http.fields import REFUSED, Schema, one_line_of_ignored, require_fields, text_or_list
from speculant_verifier.http.tool_schemas import MAX_CALLS, MAX_TOOLS, Name, Tool, ToolCall, ToolChoice

_MAX_PROMPTS = 1024
_MAX_BIASES = 1024
"""Validation of lists stops at the first wrong item, so that a body full of errors delays no other request."""


def _not_huge(values: object) -> object:
    if isinstance(values, dict) and len(values) > _MAX_BIASES:
        raise ValueError("too many")
    return values


def _none_if_drawn(value: object) -> object:
    return None if value == -1 and not isinstance(value, bool) else value


_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
Word = Annotated[str, Field(min_length=1, max_length=256)]
_StopText = Annotated[str, Field(min_length=1, max_length=1024)]
_StopTexts = Annotated[list[_StopText], Field(max_length=16, fail_fast=True)]
_Stop = Annotated[
    _StopTexts, BeforeValidator(text_or_list(lambda text: [text]), json_schema_input_type=_StopText | _StopTexts)
]
_TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_Biases = Annotated[dict[_TokenName, _Bias], BeforeValidator(_not_huge), Field(max_length=_MAX_BIASES)]
_Tokens = Annotated[list[_Token], Field(min_length=1, fail_fast=True)]
TopP = Annotated[float, Field(ge=0, le=1)]
"""Probability mass of top-p sampling; 0 keeps only the most probable token."""
NumTop = Annotated[int, Field(ge=0, le=20)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Reasoning effort of a request. Chat templates know low, medium and high; every other effort is mapped to the nearest
of these."""
TemplateOptions = Annotated[dict[str, Any], Field(max_length=64)]
"""Values for variables of a chat template, by name."""
NumTokens = Annotated[int, Field(ge=1, lt=2**31)]


_NAMES_HERE = {"k": "node_budget"}
"""Maps a draft setting to its name in requests, if this name is not ``draft_`` plus the setting's name."""


def _placed(setting: str, options: Container[str], where: str = "") -> str:
    """Return advice on how a request sets a draft setting, and for which strategies; empty if requests can't set it."""
    option = _NAMES_HERE.get(setting, f"draft_{setting}")
    if option not in options:
        return ""
    readers = READ_BY.get(setting, ())
    return f"write it as {option}{where}" + (f" if the server's strategy is {' or '.join(readers)}" if readers else "")


class SpeculantOptions(Schema):
    """Speculative-decoding options of this request."""

    refuses_unknown = True

    @model_validator(mode="before")
    @classmethod
    def _without_settings(cls, values: Any) -> Any:
        """Refuse draft settings of the server; the error names the matching option of requests, if there is one."""
        if not isinstance(values, dict):
            return values
        others = DraftConfig.model_fields.keys() - cls.model_fields.keys()
        if names := sorted(name for name in others if values.get(name) is not None):
            reason = (
                _placed(names[0], cls.model_fields) or f"the server's setting draft.{names[0]} decides; leave it out"
            )
            found = [f"speculant.{name}" for name in names]
            raise PydanticCustomError("misplaced", "{reason}", {"names": found, "reason": reason})
        return values

    rule: RuleName | None = None
    """Verification rule; with 'follow', the text depends only on the prompt, the settings and the seed."""
    speculation: Literal["auto", "on", "off"] | None = None
    """Whether to use drafts: 'auto' drafts as many tokens as pay off, 'on' as many as allowed, and 'off' none."""
    node_budget: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Maximum number of tokens drafted per step; at most the server's draft.k."""
    max_depth: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Maximum length of a drafted path, in tokens; at most the server's draft.max_depth."""
    draft_temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Temperature at which drafts are sampled, if the server's strategy is 'sampling'."""
    draft_n: Annotated[int, Field(ge=2, lt=2**31)] | None = None
    """Length in tokens of the longest n-gram, if the server's strategy is 'nasd'; at most the server's draft.n."""
    draft_filler_top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Number of the model's top tokens that the strategy 'nasd' learns; at most the server's draft.filler_top_k."""
    draft_stop_if_unknown: bool | None = None
    """Whether a draft by the strategy 'nasd' ends at a context that the strategy does not know."""
    tenant: Name | None = None
    """Tenant to which the text belongs; drafts use learned text only from this tenant's earlier requests."""
    graph: Name | None = None
    """Name of the graph from which the drafter drafts, instead of the server's choice."""
    graphs: Annotated[list[Name], Field(min_length=1)] | None = None
    """Names of up to four graphs of the drafter, which are used as layers."""
    learn: bool | None = None
    """Whether the drafter learns this request's accepted text for the tenant's later requests."""


class StreamOptions(Schema):
    """Options of a streamed answer; they have no effect if the answer is not streamed."""

    include_usage: bool = False
    """Whether the stream ends with a chunk that has the token counts of all choices, and an empty list of choices."""


class JsonSchema(Schema):
    """A named JSON schema."""

    name: Word | None = None
    """For human readers."""
    description: str | None = None
    """For human readers."""
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")] = True
    """The schema; if it is absent, any JSON is allowed."""
    strict: bool = False
    """Whether JSON must have the whitespace that Python's json module writes, so that more tokens are forced. The
    schema is enforced even if this field is false."""


class ResponseFormat(Schema):
    """Format that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    """Whether the answer is any text, a JSON object, or JSON that matches a schema."""
    json_schema: JsonSchema | None = None
    """JSON schema that the answer must match, for type 'json_schema'."""


class StructuredOutputs(Schema):
    """Format that the answer must have, with vLLM's field names; exactly one field must be set."""

    refuses_unknown = True
    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    """JSON schema of the answer, given as an object or as JSON text."""
    regex: Annotated[str, Field(min_length=1)] | None = None
    """Regular expression that the whole answer matches."""
    choice: Annotated[list[Word], Field(min_length=1, max_length=_MAX_BIASES, fail_fast=True)] | None = None
    """Texts from which the answer is chosen."""
    grammar: Annotated[str, Field(min_length=1)] | None = None
    """Grammar of the answer, in llguidance's variant of Lark."""


_SPECULANT_NAMES = SpeculantOptions.model_fields.keys()
_SERVER_NAMES = DraftConfig.model_fields.keys() - _SPECULANT_NAMES - REFUSED
"""Draft settings whose names are not speculation options of requests; without ``n``, which requests use for another
value."""


class SpeculantRequest(Schema):
    """Base class of requests that may contain the object ``speculant``."""

    speculant: SpeculantOptions | None = None
    """Speculative-decoding options of this request."""

    @model_validator(mode="before")
    @classmethod
    def _without_misplaced(cls, values: Any) -> Any:
        """Refuse speculation options outside of the object ``speculant``; only options in it have an effect."""
        if not isinstance(values, dict):
            return values
        names = sorted(name for name, value in values.items() if value is not None and name not in cls.model_fields)
        if misplaced := [name for name in names if name in _SPECULANT_NAMES]:
            raise PydanticCustomError("misplaced", "put it into the object speculant", {"names": misplaced})
        if misplaced := [name for name in names if name in _SERVER_NAMES]:
            reason = f"the server's setting draft.{misplaced[0]} decides; leave it out"
            reason = _placed(misplaced[0], _SPECULANT_NAMES, " into the object speculant") or reason
            raise PydanticCustomError("misplaced", "{reason}", {"names": misplaced, "reason": reason})
        return values


class AnyRequest(SpeculantRequest):
    """Fields that all requests of OpenAI's API share."""

    model: str
    """Name of the model, as listed by /v1/models."""
    stream: bool = False
    """Whether to stream the answer as server-sent events."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Sampling temperature; 0 always takes the most probable token."""
    top_p: TopP | None = None
    """Sample only from the most probable tokens with this total probability; 0 keeps only the most probable token."""
    seed: Annotated[
        Annotated[int, Field(ge=0, lt=2**63)] | None,
        BeforeValidator(_none_if_drawn, json_schema_input_type=Annotated[int, Field(ge=-1, lt=2**63)] | None),
    ] = None
    """Seed of the random numbers for sampling. If the seed is absent or -1, the server draws a seed and returns it."""
    refused = REFUSED

    @model_validator(mode="wrap")
    @classmethod
    def _with_one_line_of_ignored(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        with one_line_of_ignored():
            return handler(values)


class GenerationRequest(AnyRequest):
    """Fields that chat requests and completion requests share."""

    stream_options: StreamOptions | None = None
    """Options of a streamed answer."""
    max_tokens: NumTokens | None = None
    """Maximum number of new tokens."""
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of samples of each prompt; sample i uses the seed plus i."""
    stop: _Stop | None = None
    """Stop texts; the answer ends before the first stop text that occurs."""
    logit_bias: _Biases | None = None
    """Numbers that are added to the logits of tokens, by token id."""
    presence_penalty: _Penalty | None = None
    """Number that is subtracted once from the logit of every token that was already emitted."""
    frequency_penalty: _Penalty | None = None
    """Number that is subtracted from a token's logit once for each time that the token was emitted."""
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """Number of most probable tokens to sample from; 0 and -1 keep all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Drop tokens whose probability is below this share of the most probable token's probability."""
    repetition_penalty: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Penalty on tokens that are already in the sequence; values above 1 make these tokens less probable."""
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Minimum number of new tokens before an end token is allowed."""
    ignore_eos: bool = False
    """Whether generation continues after the model's end tokens."""
    stop_token_ids: Annotated[list[_Token], Field(max_length=128, fail_fast=True)] | None = None
    """Tokens that end the text, in addition to the model's end tokens."""
    structured_outputs: StructuredOutputs | None = None
    """Format that the answer must have."""


class ContentPart(Schema):
    """A part of a message's content."""

    type: Word
    """Type of the part, such as 'text' or 'input_text'. Images, files and sound are refused in the latest user message;
    in earlier messages a placeholder replaces them."""
    text: str | None = None
    """The text."""
    refusal: str | None = None
    """Text of a part of type 'refusal'."""
    filename: str | None = None
    """Name of the file, in a part that contains a file."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        require_fields(self, ("text",) if self.type in _TEXTUAL else ())
        return self

    @property
    def is_text(self) -> bool:
        """Whether the part of the content is text."""
        return self.type in _TEXTUAL or self.type == "refusal"

    @property
    def readable(self) -> str:
        """The part's text, or a placeholder for the model if the part is not text."""
        if self.is_text:
            return self.text or self.refusal or ""
        name = "" if self.filename is None else f" '{self.filename}'"
        return f"[{_KINDS.get(self.type, self.type)}{name}, left out: only text can be read here]"


_TEXTUAL = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
_KINDS = {
    "image_url": "image",
    "input_image": "image",
    "image_file": "image",
    "input_file": "file",
    "input_audio": "sound",
}

Content = str | Annotated[list[ContentPart], Field(fail_fast=True)]
"""Content of a message: one text, or a list of parts."""


def text_of(content: Content | None) -> str:
    """Return the text of a message's content; the texts of its parts are joined by line feeds."""
    return content if isinstance(content, str) else "\n".join(part.readable for part in content or ())


def unreadable_part(content: Content | None) -> tuple[int, ContentPart] | None:
    """Return the index of the first part that is not text, and the part; None if all parts are text."""
    parts: Sequence[ContentPart] = () if content is None or isinstance(content, str) else content
    return next(((index, part) for index, part in enumerate(parts) if not part.is_text), None)


class ChatMessage(Schema):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """The author's role."""
    content: Content | None = None
    """Content of the message; the texts of parts are joined by line feeds. An assistant's message may lack the
    content."""
    name: str | None = None
    """Author's name, for chat templates that use names."""
    reasoning_content: str | None = None
    """Reasoning before an assistant's answer, for chat templates that use reasoning."""
    reasoning: str | None = None
    """Another name for the field reasoning_content."""
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    """Tool calls of an assistant's message."""
    tool_call_id: Name | None = None
    """Id of the call that a tool's message answers."""
    refusal: str | None = None
    """Text of an assistant's refusal, in place of an answer."""
    refused = frozenset({"function_call", "audio"})

    @property
    def any_reasoning(self) -> str | None:
        """Reasoning of the message, from ``reasoning_content`` or, if that is absent, from ``reasoning``."""
        return self.reasoning if self.reasoning_content is None else self.reasoning_content

    def for_template(self) -> dict[str, Any]:
        """Return the message in the form that the chat template expects, without tool calls."""
        content = text_of(self.content) or self.refusal or ""
        known = {"role", "name", "tool_call_id"}
        message = {**self.model_dump(exclude_none=True, include=known), "content": content}
        if (reasoning := self.any_reasoning) is not None:
            message |= {"reasoning_content": reasoning, "thinking": reasoning}  # the name in harmony's template
        return message


class Prediction(Schema):
    """Predicted output: text that the answer may resemble."""

    type: Literal["content"]
    """'content'."""
    content: Content
    """The predicted text; parts are joined without separators."""

    @property
    def text(self) -> str:
        """The text."""
        return self.content if isinstance(self.content, str) else "".join(part.readable for part in self.content)


class ChatRequest(GenerationRequest):
    """Request to continue a conversation."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    """Messages of the conversation, from the first to the latest."""
    max_completion_tokens: NumTokens | None = None
    """Newer name for the field max_tokens."""
    logprobs: bool = False
    """Whether to return the log-probability of every token of the answer."""
    top_logprobs: NumTop | None = None
    """Number of most probable tokens per position whose log-probabilities are also returned."""
    response_format: ResponseFormat | None = None
    """Format that the answer must have."""
    prediction: Prediction | None = None
    """Text that the answer may resemble, such as a file to edit; drafts also come from this text."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Tools that the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call a tool; an object names the tools that it may or must call."""
    parallel_tool_calls: bool = True
    """Whether an answer that must call a tool may make several calls."""
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort, for models whose chat template supports it."""
    chat_template_kwargs: TemplateOptions | None = None
    """Values for variables of the model's chat template."""
    modalities: list[Literal["text"]] | None = None
    """Only 'text'."""


class CompletionRequest(GenerationRequest):
    """Text to continue."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)]
        | _Tokens
        | Annotated[list[_Tokens], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)]
    )
    """Prompts to continue: a text, a list of texts, token ids, or a list of lists of token ids."""

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts as a list; each prompt is a text or a list of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]
