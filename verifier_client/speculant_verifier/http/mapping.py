"""From a request's fields to token ids and settings that the decoder takes, with refusals that name the field."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError, UndefinedError

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationError, GenerationRequestError
from speculant_graph.serving.access import Principal
from speculant_graph.types import SessionOptions, TokenId
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.builders import RequestContext
from speculant_verifier.http.errors import ApiError, no_such_model
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest, SpeculantOptions
from speculant_verifier.http.settings import generation_config
from speculant_verifier.http.tools import check_messages, demanded_form, examples, usable_tools
from speculant_verifier.load import Load
from speculant_verifier.requests import session_options
from speculant_verifier.tool_calls import style_of


class RequestMapping:
    """Turns requests into work. Tokenising is done in threads, so that a long prompt holds up no other request."""

    def __init__(self, decoder: SpeculativeDecoder, load: Load, defaults: GenerationConfig, model_id: str) -> None:
        """Take what requests are held against.

        Args:
            decoder: has the model.
            load: has the limits.
            defaults: settings that requests do not name.
            model_id: the model's name for clients.
        """
        self._decoder, self._load, self._defaults, self._model_id = decoder, load, defaults, model_id
        tokenizer = decoder.target.tokenizer
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        self._template_takes_effort = "reasoning_effort" in template
        self._style = style_of(template)

    async def chat(self, request: ChatRequest, principal: Principal) -> RequestContext:
        """Prepare a conversation.

        Raises:
            SpeculantError: which field is wrong, or what it may not.
        """
        config, session = self._begin(request, principal, num_prompts=1)
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
        try:
            prompt = await asyncio.to_thread(self._decoder.chat_prompt, messages, **options)
        except GenerationError as error:
            raise ApiError(400, _template_refusal(error), param="messages") from error
        prediction = config.prediction if isinstance(config.prediction, str) else list(config.prediction)
        predicted = await self._hint(prediction)
        exemplary = await self._hint(examples(request, config, self._style))
        before = await self._hint(self._style.answer) if predicted and self._style is not None else ()
        config = config.model_copy(update={"prediction": (*before, *predicted, *exemplary)})
        calls = self._style if tools else None
        param = "tools" if form else "response_format"
        return await self._context([prompt], config, session, request, param, predicted=tuple(predicted), calls=calls)

    async def completion(self, request: CompletionRequest, principal: Principal) -> RequestContext:
        """Prepare texts to continue.

        Raises:
            SpeculantError: which field is wrong, or what it may not.
        """
        given = request.prompts()
        config, session = self._begin(request, principal, num_prompts=len(given))
        prompts = await asyncio.to_thread(self._encode, given)
        return await self._context(prompts, config, session, request, "response_format")

    def session(self, options: SpeculantOptions | None, principal: Principal) -> SessionOptions | None:
        """Return the options of a request's session with the drafter.

        Raises:
            AccessError: the tenant or the graph is not the client's.
        """
        options = options or SpeculantOptions()
        return session_options(principal, options.tenant or "", options.graph or "", options.learn)

    def _begin(
        self, request: ChatRequest | CompletionRequest, principal: Principal, num_prompts: int
    ) -> tuple[GenerationConfig, SessionOptions | None]:
        if request.model not in (self._model_id, self._decoder.target.name):  # as --model has it will do, too
            raise no_such_model(self._model_id)
        session = self.session(request.speculant, principal)
        config = generation_config(request, self._defaults, self._decoder.target)
        self._load.require_length(config.max_tokens)
        self._load.require_capacity(num_prompts * config.n)
        return config, session

    async def _context(
        self,
        prompts: list[list[TokenId]],
        config: GenerationConfig,
        session: SessionOptions | None,
        request: ChatRequest | CompletionRequest,
        form_param: str,
        **fields: Any,
    ) -> RequestContext:
        longest = self._decoder.target.max_length
        for prompt in prompts:
            if len(prompt) >= longest:
                param = "messages" if isinstance(request, ChatRequest) else "prompt"
                message = f"{param}: {len(prompt)} tokens, but the model's context holds {longest}, answer included"
                raise ApiError(400, f"{message}; shorten it", param=param, code="context_length_exceeded")
            try:  # in a thread, so that the form is known when the answer is decoded
                await asyncio.to_thread(self._decoder.target.grammar, config, prompt)
            except GenerationRequestError as error:
                param = "structured_outputs" if request.structured_outputs is not None else form_param
                raise ApiError(400, f"{param}: {error}", param=param) from error
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        return RequestContext(prompts, config, session, with_usage, **fields)

    async def _hint(self, text: str | list[TokenId]) -> list[TokenId]:
        """Return the tokens of what the answer may resemble."""
        return (await asyncio.to_thread(self._encode, [text], "prediction"))[0] if text else []

    def _encode(self, prompts: Sequence[str | list[TokenId]], param: str = "prompt") -> list[list[TokenId]]:
        try:
            for prompt in prompts:
                if isinstance(prompt, str):
                    prompt.encode()
        except UnicodeEncodeError as error:
            raise ApiError(400, f"{param} is not valid Unicode; give UTF-8", param=param) from error
        return [self._decoder.target.encode(each) if isinstance(each, str) else each for each in prompts]


def _template_refusal(error: GenerationError) -> str:
    """Return what a template raises on purpose; nothing of its accidents."""
    cause = error.__cause__
    if cause is None or (isinstance(cause, TemplateError) and not isinstance(cause, UndefinedError)):
        return str(error)
    return "the model's chat template can't make anything of the messages; change their roles or contents"
