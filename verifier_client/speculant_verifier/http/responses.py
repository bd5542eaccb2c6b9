"""Maps requests of OpenAI's Responses API to chat requests, and builds the API's answers and events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from speculant_graph.errors import ANSWERS, ApiError, SpeculantError
from speculant_graph.serving.access import Principal
from speculant_verifier.http.builders import (
    AnswerBuilder,
    RequestContext,
    ServedModel,
    speculation_of,
    splitter_of,
    to_json,
)
from speculant_verifier.http.errors import error_of
from speculant_verifier.http.mapping import RequestMapping
from speculant_verifier.http.responses_items import (
    ToolOrigin,
    as_chat,
    own_name,
    require_something_said,
    resolved,
    shortened,
    tools_of,
)
from speculant_verifier.http.responses_output import ContentLogprobs, Event, Output
from speculant_verifier.http.responses_schemas import WANTS_SEAL, Item, ResponsesRequest
from speculant_verifier.http.responses_store import ResponseStore, Seal
from speculant_verifier.http.token_texts import Fields
from speculant_verifier.http.tool_schemas import ChosenTool
from speculant_verifier.results import GenerationResult, StepEvent

_TOO_LONG = "context_length_exceeded"
Keep = Callable[[Fields], None]
"""Function that stores a finished response, given as a JSON object."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Data that building a response needs in addition to the decoder's input."""

    keep: Keep
    """Function that stores the finished response."""
    seal: Callable[[str], str] | None
    """Function that seals (signs) reasoning; None if the client does not ask for sealed reasoning."""
    origins: Mapping[str, ToolOrigin]
    """Names and namespaces that tools have in the client's request, by the tools' names in the prompt."""


async def map_responses(
    mapping: RequestMapping, request: ResponsesRequest, principal: Principal, store: ResponseStore, seal: Seal
) -> tuple[RequestContext, Conversation]:
    """Convert a Responses request to a chat request, and prepare it for the decoder.

    Raises:
        ApiError: a field is wrong or not allowed.
    """
    try:
        session = mapping.session(request.speculant, principal)
        tenant = "" if session is None else session.tenant or ""
        before: Sequence[Item] = ()
        if request.previous_response_id is not None:
            before = store.conversation(tenant, request.previous_response_id)
        items = resolved(request.input, store, seal, tenant, before)
        require_something_said(request.input, request.instructions, items)
        context = await _fitting(mapping, request, items, principal)
    except Exception as error:
        found = error_of(error)
        raise found.renamed(own_name(found.field)) from error

    def keep(answer: Fields) -> None:
        if request.store:
            store.put(tenant, answer, items)

    wants_seal = WANTS_SEAL in (request.include or ())
    return context, Conversation(keep, partial(seal.closed, tenant) if wants_seal else None, tools_of(request)[1])


async def _fitting(
    mapping: RequestMapping, request: ResponsesRequest, items: Sequence[Item], principal: Principal
) -> RequestContext:
    """Return the decoder's input; with ``truncation`` 'auto', drop as many of the earliest items as necessary."""

    async def chat(num_cut: int) -> RequestContext:
        return await mapping.chat(as_chat(request, shortened(items, num_cut)), principal)

    try:
        return await chat(0)
    except ApiError as error:
        if request.truncation != "auto" or error.kind != _TOO_LONG or len(items) < 2:
            raise
    too_few, enough = 0, len(items) - 1
    best = await chat(enough)
    while enough - too_few > 1:
        count = (too_few + enough) // 2
        try:
            found = await chat(count)
        except ApiError as error:
            if error.kind != _TOO_LONG:
                raise
            too_few = count
            continue
        if mapping.leaves_space(found):
            best, enough = found, count
        else:
            too_few = count
    return best


class ResponsesBuilder(AnswerBuilder):
    """Answers of /v1/responses."""

    ending = b""
    prefix = "resp"

    def __init__(
        self, context: RequestContext, model: ServedModel, request: ResponsesRequest, conversation: Conversation
    ) -> None:
        """Begin.

        Args:
            context: the prepared request.
            model: the model.
            request: the request, of which the answer repeats some fields.
            conversation: further data for building the response.
        """
        super().__init__(context, model)
        self._keep = conversation.keep
        self._repeated = _repeated(request)
        self._repeated |= {
            "temperature": context.config.temperature,
            "top_p": context.config.top_p if request.top_p is None else request.top_p,
        }
        self._output = Output(conversation.origins, conversation.seal)
        self._logprobs = ContentLogprobs(splitter_of(context, model), model.texts, model.target.decode)
        self._num_events = 0

    def whole(self) -> Fields:
        """Return the whole answer; decoding must have finished."""
        return self._response(*self._results)

    def frame(self, fields: Fields) -> bytes:
        """Encode an event of the Responses API as a server-sent event."""
        return b"event: %b\ndata: %b\n\n" % (fields["type"].encode(), to_json(fields))

    def opening(self) -> Iterator[Fields]:
        """Yield the first events of a stream, which are sent when the request is admitted."""
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, {"response": self._response()})

    def failure(self, error: SpeculantError) -> bytes:
        """Encode the end of a failed stream: the event ``error``, and ``response.failed`` with the response."""
        code = ANSWERS[error.kind].code or "invalid_prompt"
        told = {"code": code, "message": str(error)}
        failed = self._response() | {"status": "failed", "error": told}
        events = (
            ("error", told | {"param": error.field or None}),
            ("response.failed", {"response": failed}),
        )
        return b"".join(self.frame(self._event(name, fields)) for name, fields in events)

    def chunks(self, event: StepEvent) -> Iterator[Fields]:
        """Yield the stream events for one decoding step."""
        for name, fields in self._steps(event):
            yield self._event(f"response.{name}", fields)

    def _steps(self, event: StepEvent) -> Iterator[Event]:
        pieces = self._read(event)[2]
        yield from self._output.add(pieces, self._logprobs.push(event))
        if event.result is None:
            return
        if self._output.is_empty:
            yield from self._output.add([("content", "")])
        status = _status_of(event.result)
        yield from self._output.end(status)
        answer = self._response(event.result)
        self._keep(answer)
        yield status, {"response": answer}

    def _event(self, name: str, fields: Fields) -> Fields:
        self._num_events += 1
        return {"type": name, "sequence_number": self._num_events - 1, **fields}

    def _response(self, result: GenerationResult | None = None) -> Fields:
        status = "in_progress" if result is None else _status_of(result)
        fields: Fields = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model.id,
            "output": list(self._output.items),
            **self._repeated,
        }
        if result is not None:
            fields |= {"usage": self._tokens(result), "speculant": speculation_of(self.context.config.seed, [result])}
        return fields

    def _tokens(self, result: GenerationResult) -> Fields:
        """Return token counts; reasoning tokens are counted by encoding the text of the reasoning."""
        parts = (part for item in self._output.items if item["type"] == "reasoning" for part in item["content"])
        reasoning = "".join(part["text"] for part in parts)
        num_read, num_written = len(result.prompt_token_ids), len(result.token_ids)
        num_reasoning = min(num_written, len(self._model.target.encode(reasoning))) if reasoning else 0
        return {
            "input_tokens": num_read,
            "input_tokens_details": {"cached_tokens": result.num_from_prefix_cache, "cache_write_tokens": 0},
            "output_tokens": num_written,
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": num_read + num_written,
        }


def _status_of(result: GenerationResult) -> str:
    return "incomplete" if result.finish_reason == "length" else "completed"


def _repeated(request: ResponsesRequest) -> Fields:
    """Return the request's fields that the answer repeats, with defaults for absent fields."""
    text = {} if request.text is None else request.text.model_dump(exclude_none=True, by_alias=True)
    choice = request.tool_choice
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {} if request.reasoning is None else request.reasoning.model_dump(exclude_none=True),
        "store": request.store,
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": choice.model_dump(exclude_none=True) if isinstance(choice, ChosenTool) else choice or "auto",
        "tools": [tool.model_dump(exclude_none=True) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "truncation": request.truncation or "disabled",
    }
