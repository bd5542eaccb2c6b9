"""Errors as OpenAI's clients know them: a status and one object with message, type, param and code.

Messages are ours, one line that ends in what to do. What an exception of Python or of a library says is for the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import Response
from starlette.exceptions import HTTPException

from speculant_graph.errors import GenerationError
from speculant_graph.validation_messages import humanise
from speculant_verifier.engine.sequence import OUT_OF_MEMORY
from speculant_verifier.http.schemas import SpeculantOptions
from speculant_verifier.results import GenerationResult

INVALID = "invalid_request_error"
_RETRY_AFTER_S = "1"

_KNOWN_ELSEWHERE = frozenset({
    "audio", "chat_template", "chat_template_kwargs", "documents", "function_call", "functions", "guided_choice",
    "guided_grammar", "guided_json", "guided_regex", "length_penalty", "metadata", "modalities",
    "conversation", "context_management", "max_tool_calls", "moderation",
    "prompt_cache_retention", "prompt_logprobs",
    "safety_identifier", "service_tier", "store", "suffix", "top_logprobs",
    "truncate_prompt_tokens", "use_beam_search", "verbosity", "web_search_options",
})  # fmt: skip
"""What clients of other servers send and this one does not do."""

_TEXTUAL = 'give text, or a list of parts such as {"type": "text", "text": "Hello"}; no other parts are served'
_EXPECTED = {
    "prompt": "give text, a list of texts, token ids, or a list of lists of token ids; none of them may be empty",
    "stop": "give a text or a list of at most 16, each of 1 to 1024 characters",
    "logit_bias": "give an object of at most 1024 numbers from -100 to 100, by token ids in decimal digits",
    "content": _TEXTUAL,
    "output": _TEXTUAL,
    "summary": _TEXTUAL,
}
"""For fields that take several shapes: what pydantic says of each of them would confuse."""

_ONLY = {"echo": "false", "background": "false"}
"""Fields of which one value is served."""


class ApiError(HTTPException):
    """Why a request gets no answer, as the client is told.

    Of the framework's kind, so that it comes through where bodies are read.
    """

    def __init__(
        self, status: int, message: str, *, kind: str = INVALID, param: str | None = None, code: str | None = None
    ) -> None:
        """Make an error.

        Args:
            status: of HTTP.
            message: one line.
            kind: the field ``type``.
            param: the field of the request that is wrong.
            code: for programs.
        """
        super().__init__(status, message)
        self.status = status
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        """Return the answer."""
        headers = {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (429, 503):
            headers["retry-after"] = _RETRY_AFTER_S
        return Response(
            json.dumps(self.content), status_code=self.status, headers=headers, media_type="application/json"
        )


def unavailable(problem: str) -> ApiError:
    """Return what is said while the server starts or goes away."""
    return ApiError(503, f"{problem}; try again later", kind="server_error", code="unavailable")


def no_such_model(model_id: str) -> ApiError:
    """Return what is said of other models' names.

    Args:
        model_id: how clients call this one.
    """
    return ApiError(404, f"there is no such model; ask for '{model_id}'", param="model", code="model_not_found")


def internal() -> ApiError:
    """Return what is said of our own failures."""
    return ApiError(
        500, "the server failed; tell its operator the x-request-id", kind="server_error", code="internal_error"
    )


def too_busy(what: str) -> ApiError:
    """Return what is said when there is no room."""
    return ApiError(429, f"{what}; try again in a moment", kind="rate_limit_error", code="queue_full")


def of_result(result: GenerationResult, model_name: str, model_id: str) -> ApiError:
    """Explain a sample that ended with an error.

    Args:
        result: of the sample.
        model_name: how the library calls the model; it may be a path, which stays here.
        model_id: how clients call it.
    """
    message = result.error.replace(f"'{model_name}'", f"'{model_id}'")
    if result.error == OUT_OF_MEMORY:
        return ApiError(503, message, kind="server_error", code="out_of_memory")
    if result.is_clients_fault:
        param = "bad_words" if message.startswith("bad word") else None
        return ApiError(400, message, param=param)  # refused before its first step, or by its own settings
    return internal()


def of_call(error: GenerationError) -> ApiError:
    """Explain why all requests of a decoder ended."""
    del error  # it speaks to users of the library
    return unavailable("the server stopped decoding")


def of_content_type(content_type: str) -> ApiError | None:
    """Explain a body that was not read as its header does not call it JSON; None if that is not what was wrong.

    Args:
        content_type: the header; empty if there is none.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return None
    said = f"is '{printable_name(kind)}'" if kind else "is missing"
    return ApiError(400, f"the header content-type {said}; send the body as application/json")


def of_validation(complaints: Sequence[Mapping[str, Any]]) -> ApiError:
    """Put pydantic's complaints into one; fields that are not served come first, and all of them are named.

    Args:
        complaints: their places begin with a word for the whole, such as "body".
    """
    places = [[printable_name(str(part)) for part in complaint["loc"][1:]] for complaint in complaints]
    strange = [
        ".".join(place)
        for place, complaint in zip(places, complaints, strict=True)
        if complaint["type"] == "extra_forbidden" and not (_EXPECTED.keys() | _ONLY) & set(place[:-1])
    ]
    if strange:
        known = [name for name in strange if name.rpartition(".")[2] in _KNOWN_ELSEWHERE]
        names = ", ".join(f"'{name}'" for name in (known or strange)[:8])
        what, code = ("not supported here", "unsupported_parameter") if known else ("unknown", "unknown_parameter")
        remedy = "leave it out"
        if not known and strange[0] in SpeculantOptions.model_fields:
            remedy = f'write it as {{"speculant": {{"{strange[0]}": ...}}}}'
        return ApiError(400, f"{what}: {names}; {remedy}", param=(known or strange)[0], code=code)
    place, complaint = places[0], complaints[0]
    if complaint["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: it breaks at character {int(place[0]) + 1}; mend it there")
    if not place:
        is_empty = complaint["type"] == "missing"
        return ApiError(400, f"the body {'is empty' if is_empty else 'is no JSON object'}; send a JSON object")
    param = ".".join(place)
    if complaint["type"] == "missing" and not _EXPECTED.keys() & set(place[:-1]):
        return ApiError(400, f"{param} is missing, or null; give it", param=param)
    if place[0] in _ONLY:
        text = f"not supported here: '{place[0]}' other than {_ONLY[place[0]]}; leave it out"
        return ApiError(400, text, param=place[0], code="unsupported_value")
    for number, part in enumerate(place):
        if part in _EXPECTED:
            param = ".".join(place[: number + 1])
            return ApiError(400, f"{param}: {_EXPECTED[part]}", param=param)
    if complaint["type"] in ("model_attributes_type", "model_type"):
        return ApiError(400, f"{param}: give an object", param=param)
    reason = humanise(complaint)
    if reason.startswith("must "):
        return ApiError(400, f"{param} {reason}", param=param)
    if complaint["type"] != "value_error":
        reason += "; correct it"
    return ApiError(400, reason if reason.startswith(f"{param} ") else f"{param}: {reason}", param=param)


def printable_name(name: str) -> str:
    """Return a name that a client made up, short and without control characters.

    Args:
        name: as it came.
    """
    return "".join(character if character.isprintable() else "?" for character in name[:64])
