"""From a request's fields to token ids and settings that the decoder takes, with refusals that name the field."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2.exceptions import TemplateError, UndefinedError

from speculant_graph.config import GenerationConfig, ServiceConfig
from speculant_graph.errors import AccessError, GenerationError, GenerationRequestError
from speculant_graph.serving.access import Principal
from speculant_graph.types import SessionOptions, TokenId
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.errors import ApiError, no_such_model
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest, SpeculantOptions
from speculant_verifier.http.settings import generation_config
from speculant_verifier.http.shapes import Job
from speculant_verifier.http.tools import check_messages, demanded_form, examples, usable_tools
from speculant_verifier.tenants import session_options
from speculant_verifier.tool_calls import style_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be decoded."""

    job: Job
    """What its answer must know."""
    config: GenerationConfig
    """Settings of all its prompts."""
    session: SessionOptions | None
    """What it wants of the drafter."""


class Preparation:
    """Turns requests into work. Tokenising is done in threads, so that a long prompt holds nobody up."""

    def __init__(
        self, decoder: SpeculativeDecoder, config: ServiceConfig, defaults: GenerationConfig, model_id: str
    ) -> None:
        """Take what requests are held against.

        Args:
            decoder: has the model.
            config: limits.
            defaults: settings that requests do not name.
            model_id: the model's name for clients.
        """
        self._decoder, self._config, self._defaults, self._model_id = decoder, config, defaults, model_id
        tokenizer = decoder.target.tokenizer
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        self._template_takes_effort = "reasoning_effort" in template
        self._style = style_of(template)

    def tenant_of(self, options: SpeculantOptions | None, principal: Principal) -> str:
        """Return whose a request is; empty for nobody's in particular.

        Raises:
            ApiError: the tenant or the graph is not the client's.
        """
        session = _session(options, principal)
        return "" if session is None else session.tenant or ""

    async def chat(self, request: ChatRequest, principal: Principal) -> Prepared:
        """Prepare a conversation.

        Raises:
            ApiError: which field is wrong.
        """
        self._require_model(request.model)
        session = _session(request.speculant, principal, request.prompt_cache_key)
        config = generation_config(request, self._defaults, self._decoder.target)
        options: dict[str, Any] = {}
        if request.reasoning_effort is not None:
            if not self._template_takes_effort:
                raise ApiError(
                    400,
                    "not supported here: 'reasoning_effort', the model's chat template does not take it; leave it out",
                    param="reasoning_effort",
                    code="unsupported_parameter",
                )
            options["reasoning_effort"] = request.reasoning_effort
        check_messages(request.messages)
        tools = usable_tools(request, self._style)
        if tools:
            options["tools"] = tools
        if form := demanded_form(request, self._style):
            config = config.model_copy(update={"grammar": form})
        messages = [message.for_template() for message in request.messages]
        self._require_room_for(1, config)
        try:
            prompt = await asyncio.to_thread(self._decoder.chat_prompt, messages, **options)
        except GenerationError as error:
            raise ApiError(400, _template_refusal(error), param="messages") from error
        prediction = config.prediction if isinstance(config.prediction, str) else list(config.prediction)
        predicted = await self._hint(prediction)
        exemplary = await self._hint(examples(request, config, self._style))
        before = await self._hint(self._style.answer) if predicted and self._style is not None else ()
        config = config.model_copy(update={"prediction": (*before, *predicted, *exemplary)})
        await self._compile(config, [prompt], request)
        prepared = self._prepared([prompt], config, session, request, "messages")
        job = replace(prepared.job, predicted=tuple(predicted), calls=self._style if tools else None)
        return replace(prepared, job=job)

    async def completion(self, request: CompletionRequest, principal: Principal) -> Prepared:
        """Prepare texts to continue.

        Raises:
            ApiError: which field is wrong.
        """
        self._require_model(request.model)
        session = _session(request.speculant, principal, request.prompt_cache_key)
        config = generation_config(request, self._defaults, self._decoder.target)
        given = request.prompts()
        self._require_room_for(len(given), config)
        prompts = await asyncio.to_thread(self._encode, given)
        await self._compile(config, prompts, request)
        return self._prepared(prompts, config, session, request, "prompt")

    async def _hint(self, text: str | list[TokenId]) -> list[TokenId]:
        """Return the tokens of what the answer may resemble."""
        return (await asyncio.to_thread(self._encode, [text], "prediction"))[0] if text else []

    async def _compile(
        self, config: GenerationConfig, prompts: list[list[TokenId]], request: ChatRequest | CompletionRequest
    ) -> None:
        """Compile the form of the answers in a thread, so that it is known when they are decoded."""
        try:
            for each in prompts:
                await asyncio.to_thread(self._decoder.target.grammar, config, each)
        except GenerationRequestError as error:
            param = "structured_outputs" if request.structured_outputs is not None else "response_format"
            if isinstance(request, ChatRequest) and request.tools and request.tool_choice not in (None, "auto", "none"):
                param = "tools"
            message = str(error).replace("ignore_end_tokens", "ignore_eos")
            raise ApiError(400, f"{param}: {message}", param=param) from error

    def _encode(self, prompts: Sequence[str | list[TokenId]], param: str = "prompt") -> list[list[TokenId]]:
        target = self._decoder.target
        for prompt in prompts:
            try:
                if isinstance(prompt, str):
                    prompt.encode()
            except UnicodeEncodeError as error:
                raise ApiError(400, f"{param} is not valid Unicode; give UTF-8", param=param) from error
        return [target.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    def _prepared(
        self,
        prompts: list[list[TokenId]],
        config: GenerationConfig,
        session: SessionOptions | None,
        request: ChatRequest | CompletionRequest,
        param: str,
    ) -> Prepared:
        target = self._decoder.target
        for prompt in prompts:
            if not prompt:
                raise ApiError(400, f"{param}: there is nothing to continue; give at least one token", param=param)
            if len(prompt) >= target.max_length:
                raise ApiError(
                    400,
                    f"{param}: {len(prompt)} tokens, but the model's context holds {target.max_length}, answer "
                    "included; shorten it",
                    param=param,
                    code="context_length_exceeded",
                )
            if max(prompt) >= target.vocabulary_size:
                raise ApiError(
                    400,
                    f"{param}: token {max(prompt)}, but the model knows 0 to {target.vocabulary_size - 1}; use its own "
                    "tokenizer",
                    param=param,
                )
        options = request.stream_options
        job = Job(
            prompts=prompts,
            num_samples=config.n,
            seed=config.seed,
            with_logprobs=config.logprobs is not None,
            with_usage=options is not None and options.include_usage,
            model=self._model_id,
        )
        return Prepared(job, config, session)

    def _require_model(self, name: str) -> None:
        if name not in (self._model_id, self._decoder.target.name):  # as --model has it will do, too
            raise no_such_model(self._model_id)

    def _require_room_for(self, num_prompts: int, config: GenerationConfig) -> None:
        longest = self._config.max_new_tokens
        if longest and config.max_tokens > longest:
            raise ApiError(
                400,
                f"max_tokens is {config.max_tokens}, but a request may have {longest}; ask for fewer",
                param="max_tokens",
            )
        most = self._config.max_samples
        if num_prompts * config.n > most:
            raise ApiError(
                400,
                f"prompts times n are {num_prompts * config.n} choices, but a request may have {most}; ask for fewer",
                param="n",
                code="too_many_samples",
            )


def _session(
    options: SpeculantOptions | None, principal: Principal, conversation: str | None = None
) -> SessionOptions | None:
    options = options or SpeculantOptions()
    try:
        return session_options(principal, options.tenant or "", options.graph or "", options.learn, conversation)
    except AccessError as error:
        raise ApiError(403, str(error), kind="permission_error", param=f"speculant.{error.field}") from error


def _template_refusal(error: GenerationError) -> str:
    """Return what a template says on purpose; of its accidents nothing."""
    cause = error.__cause__
    if cause is None or (isinstance(cause, TemplateError) and not isinstance(cause, UndefinedError)):
        return str(error)
    return "the model's chat template can't make anything of the messages; change their roles or contents"
