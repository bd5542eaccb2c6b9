"""Maps requests to token ids and settings for the decoder; errors name the request's field."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

from jinja2.exceptions import TemplateError, UndefinedError
from transformers import PreTrainedTokenizerBase

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ApiError, GenerationError, GenerationRequestError
from speculant_graph.serving.access import Principal
from speculant_graph.types import SessionOptions, TokenId
from speculant_verifier.conversation.tool_calls import STRICT
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.builders import RequestContext
from speculant_verifier.http.errors import MISSING, missing, no_such_model, of_library, unsupported, wrong
from speculant_verifier.http.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    SpeculantOptions,
    unreadable_part,
)
from speculant_verifier.http.tools import UsableTool, call_for_template, examples, usable_tools, with_form
from speculant_verifier.model import TargetModel
from speculant_verifier.service.requests import Load, changed, context_problem, session_options
from speculant_verifier.structured.grammar import grammar_of_choices, grammar_of_regex
from speculant_verifier.structured.json_schema import prepared
from speculant_verifier.suitability import require_request

_MAX_DRAWN_SEED = 1 << 53
"""Upper bound of the seeds that the server draws. Answers contain these seeds, and some clients read all numbers as
doubles."""

_SAME_NAMES = (
    "max_tokens", "n", "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "min_tokens", "seed",
)  # fmt: skip
_CONVERTED: dict[str, Callable[[Any], object]] = {
    "top_k": lambda k: max(0, k),
    "stop": tuple,
    "logit_bias": lambda biases: {int(token): bias for token, bias in biases.items()},
    "prediction": lambda prediction: prediction.text,
}
"""Functions that convert values of request fields to values of the settings with the same names."""
_OF_DRAFTER = {"tenant", "graph", "graphs", "learn"}
_EFFORTS = {name: name for name in ("low", "medium", "high")} | {
    "none": "low", "minimal": "low", "xhigh": "high", "max": "high"
}  # fmt: skip
"""Maps each reasoning effort that a request may name to an effort that chat templates know."""
_TAKEN = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {"messages"}
"""Parameters of ``apply_chat_template``, whose names can't be template variables."""

_MOST_LENGTHS = 64
"""Maximum number of prompt prefixes (instructions and tools) whose lengths are cached."""


class RequestMapping:
    """Prepares requests for the decoder, each in a thread, so that a long prompt delays no other request."""

    def __init__(self, decoder: SpeculativeDecoder, load: Load, defaults: GenerationConfig, model_id: str) -> None:
        """Set up the mapping of requests to the decoder's input.

        Args:
            decoder: the decoder, with its model.
            load: the limits.
            defaults: values for settings that a request leaves out.
            model_id: the model's name for clients.
        """
        self._decoder, self._load, self._defaults, self._model_id = decoder, load, defaults, model_id
        self._shared_lengths: dict[bytes, int] = {}
        self._style = decoder.chat_format.style

    async def chat(self, request: ChatRequest, principal: Principal) -> RequestContext:
        """Prepare a conversation.

        Raises:
            SpeculantError: a field is wrong or not allowed.
        """
        config, session = self._begin(request, principal, num_prompts=1)
        return await asyncio.to_thread(self._chat, request, config, session)

    def _chat(self, request: ChatRequest, config: GenerationConfig, session: SessionOptions | None) -> RequestContext:
        tools, messages, options = self._conversation(request)
        exemplary = examples(tools, config, self._style)
        own, config = config, with_form(config, request, tools, self._style)
        prompt = self._rendered(messages, options)
        prediction = config.prediction if isinstance(config.prediction, str) else list(config.prediction)
        predicted = self._hint(prediction)
        before = self._hint(self._style.answer) if predicted and self._style is not None else ()
        config = config.model_copy(update={"prediction": (*before, *predicted, *self._hint(exemplary))})
        if self._is_unlimited(request):
            config = config.model_copy(update={"max_tokens": self._decoder.engine.admission.most_output(len(prompt))})
        param = "response_format" if config.grammar == own.grammar else "tools"
        if param == "tools" and (own.json_schema or own.grammar):  # an error in this form must not name the tools
            self._require_form(own, prompt, request, "response_format")
        context = self._context([prompt], config, session, request, param)
        names = frozenset(tool.name for tool in tools) if tools else None
        custom = frozenset(tool.name for tool in tools if tool.is_custom)
        tenant = "" if session is None else session.tenant or ""
        shared = self._shared_length(tenant, prompt, messages, options)
        return replace(context, tool_names=names, custom=custom, predicted=tuple(predicted), shared_length=shared)

    async def count(self, request: ChatRequest) -> int:
        """Return the number of prompt tokens of a conversation, even if the prompt exceeds the model's context.

        Raises:
            SpeculantError: a field is wrong.
        """
        self._require_model(request.model)
        _, messages, options = self._conversation(request)
        return len(await asyncio.to_thread(self._rendered, messages, options))

    def _conversation(self, request: ChatRequest) -> tuple[list[UsableTool], list[dict[str, Any]], dict[str, Any]]:
        """Return a conversation's tools, its messages, and the variables of the chat template, including the tools.

        Raises:
            ApiError: a field is wrong.
        """
        options = self._template_options(request)
        check_messages(request.messages)
        tools = usable_tools(request, self._style)
        if tools:
            options["tools"] = [tool.for_template for tool in tools]
        return tools, [_for_template(message, tools) for message in request.messages], options

    def _rendered(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[TokenId]:
        try:
            return self._decoder.chat_format.render(messages, **options)
        except GenerationError as error:
            raise _template_refusal(error) from error

    def _shared_length(
        self, tenant: str, prompt: list[TokenId], messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> int:
        """Return how many prompt tokens are instructions and tools; 0 if the prefix cache does not use this number."""
        if not self._decoder.engine.prefixes.takes_stops:
            return 0
        head = list(takewhile(lambda message: message["role"] in ("system", "developer"), messages))
        told = json.dumps([tenant, head, options], sort_keys=True, default=str)  # tenants must not learn of each other
        key = hashlib.blake2b(told.encode()).digest()
        if key not in self._shared_lengths:
            with suppress(GenerationError):  # some templates reject instructions alone
                self._shared_lengths[key] = self._decoder.chat_format.shared_length(prompt, messages, **options)
            while len(self._shared_lengths) > _MOST_LENGTHS:
                self._shared_lengths.pop(next(iter(self._shared_lengths)), None)
        return self._shared_lengths.get(key, 0)

    def _is_unlimited(self, request: ChatRequest) -> bool:
        """Tell whether new tokens have only the built-in default limit, because no other limit is set."""
        is_given = request.max_tokens is not None or request.max_completion_tokens is not None
        return not is_given and self._defaults.max_tokens == GenerationConfig.model_fields["max_tokens"].default

    def leaves_space(self, context: RequestContext) -> bool:
        """Tell whether prompts leave room for the longest allowed answer or 1/8 of the context, whichever is less."""
        longest = self._decoder.target.max_length
        return max(map(len, context.prompts)) + min(context.config.max_tokens, longest // 8) <= longest

    def _template_options(self, request: ChatRequest) -> dict[str, Any]:
        """Return the chat-template variables that a request sets.

        Raises:
            ApiError: the template does not accept one of the variables.
        """
        options = dict(request.chat_template_kwargs or {})
        if taken := sorted(options.keys() & _TAKEN):
            raise ApiError(
                "unsupported_parameter",
                "{field} is not a variable of a template",
                fix="leave it out",
                field=f"chat_template_kwargs.{taken[0]}",
            )
        name, effort = "chat_template_kwargs.reasoning_effort", options.get("reasoning_effort")
        if request.reasoning_effort is not None:
            name, effort = "reasoning_effort", request.reasoning_effort
        if effort is None or (effort == "none" and not self._decoder.chat_format.takes_effort):
            return {key: value for key, value in options.items() if key != "reasoning_effort"}
        if not self._decoder.chat_format.takes_effort:
            raise unsupported(name, "leave it out", reason=", because the model's chat template does not take it")
        if effort not in _EFFORTS:
            raise wrong(f"{{field}} must be one of {', '.join(_EFFORTS)}", name)
        return options | {"reasoning_effort": _EFFORTS[effort]}

    async def completion(self, request: CompletionRequest, principal: Principal) -> RequestContext:
        """Prepare a completion request for the decoder.

        Raises:
            SpeculantError: a field is wrong or not allowed.
        """
        given = request.prompts()
        config, session = self._begin(request, principal, num_prompts=len(given))
        return await asyncio.to_thread(self._context, given, config, session, request, "response_format")

    def session(self, options: SpeculantOptions | None, principal: Principal) -> SessionOptions | None:
        """Return the options of a request's session with the drafter; None for the server's options.

        Raises:
            AccessError: the client is not allowed to use the tenant or the graph.
            GenerationRequestError: the request sets both ``graph`` and ``graphs``.
        """
        if options is None:
            return session_options(principal, "", "", None)
        if options.graph and options.graphs:
            raise GenerationRequestError(
                "{field} and speculant.graph exclude each other", fix="leave one out", field="speculant.graphs"
            )
        graph = options.graph or "+".join(options.graphs or ())
        return session_options(principal, options.tenant or "", graph, options.learn)

    def _begin(
        self, request: ChatRequest | CompletionRequest, principal: Principal, num_prompts: int
    ) -> tuple[GenerationConfig, SessionOptions | None]:
        self._require_model(request.model)
        session = self.session(request.speculant, principal)
        config = generation_config(request, self._defaults, self._decoder.target)
        require_request(config, self._decoder.draft_config)
        self._load.require_capacity(num_prompts * config.n, num_prompts)
        return config, session

    def _require_model(self, name: str) -> None:
        if name not in (self._model_id, self._decoder.target.name):  # the value of --model is accepted, too
            raise no_such_model(self._model_id)

    def _context(
        self,
        given: Sequence[str | list[TokenId]],
        config: GenerationConfig,
        session: SessionOptions | None,
        request: ChatRequest | CompletionRequest,
        form_param: str,
    ) -> RequestContext:
        longest, prompts = self._decoder.target.max_length, self._encode(given)
        for prompt in prompts:
            if len(prompt) >= longest:
                raise ApiError(
                    "context_length_exceeded",
                    f"{{field}}: {len(prompt)} tokens, but the model's context holds {longest}, answer included",
                    fix="shorten it",
                    field="messages" if isinstance(request, ChatRequest) else "prompt",
                )
            name, asked = _asked_tokens(request)
            if asked is not None and (problem := context_problem(len(prompt), asked, longest, name)):
                raise problem
            self._require_form(config, prompt, request, form_param)
            self._decoder.check(prompt, config)  # before a stream has sent its status
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        return RequestContext(prompts, config, session, with_usage)

    def _require_form(
        self, config: GenerationConfig, prompt: list[TokenId], request: ChatRequest | CompletionRequest, param: str
    ) -> None:
        try:  # compiles the grammar before decoding
            self._decoder.target.grammar(config, prompt)
        except GenerationRequestError as error:
            param = "structured_outputs" if request.structured_outputs is not None else param
            raise wrong(f"{{field}}: {of_library(error)}", param) from error

    def _hint(self, text: str | list[TokenId]) -> list[TokenId]:
        """Return the token ids of a text that the answer may resemble."""
        return self._encode([text], "prediction")[0] if text else []

    def _encode(self, prompts: Sequence[str | list[TokenId]], param: str = "prompt") -> list[list[TokenId]]:
        try:
            for prompt in prompts:
                if isinstance(prompt, str):
                    prompt.encode()
        except UnicodeEncodeError as error:
            raise wrong("{field} is not valid Unicode", param, fix="give UTF-8") from error
        return [self._decoder.target.encode(each) if isinstance(each, str) else each for each in prompts]


def _asked_tokens(request: ChatRequest | CompletionRequest) -> tuple[str, int | None]:
    """Return the name and the value of the field that limits a request's new tokens."""
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    return ("max_tokens", request.max_tokens) if newer is None else ("max_completion_tokens", newer)


def _template_refusal(error: GenerationError) -> ApiError:
    """Return the client's error for a chat template that failed, with the message that the template raised, if any."""
    cause = error.__cause__
    if cause is None or (isinstance(cause, TemplateError) and not isinstance(cause, UndefinedError)):
        return error.as_class(partial(ApiError, "wrong_request"), "messages")
    message = "the model's chat template can't render the messages"
    return wrong(message, "messages", fix="change their roles or contents")


def generation_config(
    request: ChatRequest | CompletionRequest, defaults: GenerationConfig, target: TargetModel
) -> GenerationConfig:
    """Return the generation settings of a request.

    Args:
        request: the request.
        defaults: values for settings that the request leaves out, except ``n``, ``seed`` and ``logprobs``.
        target: the model, which has the end tokens.

    Raises:
        ApiError: two fields contradict each other.
        GenerationRequestError: a value is not allowed.
    """
    wanted: dict[str, Any] = {"n": 1, "seed": secrets.randbelow(_MAX_DRAWN_SEED), "logprobs": None}
    wanted |= {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    for name, convert in _CONVERTED.items():
        if (value := getattr(request, name, None)) is not None:
            wanted[name] = convert(value)
    if request.top_p == 0:
        del wanted["top_p"]  # after rounding, even the smallest mass may keep two tokens
        wanted["top_k"] = 1
    if isinstance(request, ChatRequest):
        wanted |= _of_chat(request)
    wanted |= _form(request)
    if request.stop_token_ids is not None or request.ignore_eos:
        own = target.end_token_ids if defaults.end_token_ids is None else defaults.end_token_ids
        ends = {*(request.stop_token_ids or ()), *(() if request.ignore_eos else own)}
        wanted |= {"end_token_ids": tuple(sorted(ends)), "ignore_end_tokens": not ends}
    if request.speculant is not None:
        wanted |= request.speculant.model_dump(exclude=_OF_DRAFTER, exclude_none=True)
    return changed(defaults, wanted)


def _of_chat(request: ChatRequest) -> dict[str, Any]:
    newer = request.max_completion_tokens
    if newer is not None and request.max_tokens not in (None, newer):
        raise wrong("{field} and max_completion_tokens differ", "max_tokens", fix="give one")
    if request.top_logprobs and not request.logprobs:
        raise wrong("{field} needs logprobs = true", "top_logprobs", fix="set it")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return {"logprobs": logprobs} | ({} if newer is None else {"max_tokens": newer})


def _form(request: ChatRequest | CompletionRequest) -> dict[str, Any]:
    """Return the structured-output settings that a request asks for."""
    given = request.response_format if isinstance(request, ChatRequest) else None
    form: dict[str, Any] = {}
    if given is not None and given.type == "json_object":
        form["json_schema"] = '{"type": "object"}'
    elif given is not None and given.type == "json_schema":
        if given.json_schema is None:
            raise missing("response_format.json_schema")
        schema = prepared(given.json_schema.schema_, is_strict=given.json_schema.strict)
        if given.json_schema.strict and isinstance(schema, dict):
            schema = {**schema, "x-guidance": STRICT}
        form["json_schema"] = json.dumps(schema)
    if (other := request.structured_outputs) is None:
        return form
    own = json.dumps(other.json_) if isinstance(other.json_, dict) else other.json_
    regex = None if other.regex is None else grammar_of_regex(other.regex)
    choice = None if other.choice is None else grammar_of_choices(other.choice)
    grammars = [each for each in (other.grammar, regex, choice) if each is not None]
    if len(form) + (own is not None) + len(grammars) != 1:
        message = "{field} takes one of json, regex, choice and grammar, and no response_format with it"
        raise wrong(message, "structured_outputs")
    return {"grammar": grammars[0]} if grammars else {"json_schema": own}


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Check that messages fit their roles, and that a user message at the end contains only text.

    Raises:
        ApiError: a field of a message is wrong.
    """
    for index, message in enumerate(messages):
        problem = None
        is_said = message.role == "assistant" and (message.tool_calls or message.any_reasoning or message.refusal)
        if message.content is None and not message.tool_calls and not is_said:
            problem = "content", MISSING, "give it"
        elif message.tool_calls and message.role != "assistant":
            problem = "tool_calls", "belongs to messages of the assistant", "leave it out"
        elif message.role == "tool" and message.tool_call_id is None:
            problem = "tool_call_id", MISSING, "name the call that the message answers"
        elif message.role != "tool" and message.tool_call_id is not None:
            problem = "tool_call_id", "belongs to messages of tools", "leave it out"
        if problem is not None:
            raise wrong(f"{{field}} {problem[1]}", f"messages.{index}.{problem[0]}", fix=problem[2])
    # In earlier messages a placeholder replaces an image, so that the conversation can continue.
    index = len(messages) - 1
    if messages[index].role == "user" and (found := unreadable_part(messages[index].content)):
        raise ApiError(
            "unsupported_parameter",
            f"not supported here: '{found[1].type}' in the latest message, because only text can be read",
            fix="send text alone",
            field=f"messages.{index}.content.{found[0]}",
        )


def _for_template(message: ChatMessage, tools: Sequence[UsableTool]) -> dict[str, Any]:
    """Return a message in the form that the chat template expects."""
    calls = [call_for_template(call, tools) for call in message.tool_calls or ()]
    return message.for_template() | ({"tool_calls": calls} if calls else {})
