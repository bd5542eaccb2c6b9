"""Errors as OpenAI's clients expect them: a status and one object with message, type, param and code.

Messages are ours, one line that ends in what to do. The text of an exception of Python or of a library is for the log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from speculant_graph.errors import (
    AccessError,
    DrafterUnavailableError,
    DraftLimitError,
    GenerationRequestError,
    UnauthenticatedError,
)
from speculant_graph.serving.json_body import JsonBodyError
from speculant_graph.validation_messages import humanise
from speculant_verifier.http.fields import INCOMPLETE, NO_SHAPE, REFUSED, resembled
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest, SpeculantOptions
from speculant_verifier.http.tool_schemas import ChosenTool

_RETRY_AFTER_S = "1"
_TEXTUAL = 'give text, or a list of parts such as {"type": "text", "text": "Hello"}'
_EXPECTED = {
    "prompt": "give text, a list of texts, token ids, or a list of lists of token ids; none of them may be empty",
    "stop": "give a text or a list of at most 16, each of 1 to 1024 characters",
    "logit_bias": "give an object of at most 1024 numbers from -100 to 100, by token ids in decimal digits",
    "content": _TEXTUAL,
    "output": _TEXTUAL,
    "summary": _TEXTUAL,
    "tool_choice": "give 'none', 'auto', 'required', or one of the tools by its type and name",
    "background": "not served other than false; leave it out",
}
"""For fields that take several shapes: pydantic's message for each of them would confuse."""
_BRANCH = re.compile(r"(str|bool|int|(constrained-)?(str|int)|(dict|list)\[.*)$")
"""What pydantic calls the shapes of a field that takes several."""
_OBJECTS = ("content", "output", "summary", "tool_choice")
"""Those of them that may hold objects, in which the place of what is wrong is told."""
_SHAPE = re.compile(rf"((list|literal)\[.*|str|{ChosenTool.__name__})$")
"""What pydantic calls their shapes."""
MISSING = "is missing, or null"
_OF_LIBRARY = {"end_token_ids": "stop_token_ids", "ignore_end_tokens": "ignore_eos"}
"""Settings of the library, and what they are called here."""
_FIELDS = ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()


class ApiError(HTTPException):
    """Why a request gets no answer, as the client gets it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
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
        return Response(json.dumps(self.content), self.status, headers, media_type="application/json")


def error_of(error: Exception) -> ApiError:
    """Return what a client gets for a failure, wherever in the server it came up."""
    message = str(error)
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return of_validation(error.errors())
        case UnauthenticatedError():
            message = "the key is missing or unknown; send 'Authorization: Bearer KEY'"
            return ApiError(401, message, code="invalid_api_key")
        case JsonBodyError():
            return ApiError(400, message, param=error.field or None)
        case AccessError():
            return ApiError(403, message, kind="permission_error", param=f"speculant.{error.field}")
        case GenerationRequestError():
            for name, ours in _OF_LIBRARY.items():
                message = message.replace(name, ours)
            words = [error.field, *re.findall(r"\w+", message)[:3]]  # messages of the library begin with the setting
            param = next((word for word in words if word in _FIELDS), None)
            is_of_drafts = error.field in SpeculantOptions.model_fields and error.field not in _FIELDS
            return ApiError(400, message, param=f"speculant.{error.field}" if is_of_drafts else param)
        case DraftLimitError():
            message = "too many requests wait or are being answered; try again in a moment"
            return ApiError(429, message, kind="rate_limit_error", code="queue_full")
        case DrafterUnavailableError():
            message = message if ";" in message else f"{message}; try again later"
            return ApiError(503, message, kind="server_error", code="unavailable")
        case HTTPException():
            return _of_framework(error)
    message = "the server failed; give its operator the x-request-id"
    return ApiError(500, message, kind="server_error", code="internal_error")


def no_such_model(model_id: str) -> ApiError:
    """Return the error for other models' names.

    Args:
        model_id: how clients call this one.
    """
    return ApiError(404, f"there is no such model; ask for '{model_id}'", param="model", code="model_not_found")


def of_validation(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """Put what pydantic found into one error; fields that are not served come first, and all of them are named.

    Args:
        problems: their locations begin with a word for the whole, such as "body".
    """
    problems = _of_given_shapes([_plain(problem) for problem in problems])
    paths = [[printable(part) for part in problem["loc"]] for problem in problems]
    unknown = [
        ".".join(path)
        for path, problem in zip(paths, problems, strict=True)
        if problem["type"] == "extra_forbidden" and _unshaped(path[:-1], path) is None
    ]
    if unknown:
        names = ", ".join(f"'{name}'" for name in unknown[:8])
        meant = resembled(unknown[0], _FIELDS - {unknown[0]}) if unknown[0] not in REFUSED else ""
        remedy = f"write '{meant}', or leave it out" if meant else "leave it out"
        message = f"not supported here: {names}; {remedy}"
        return ApiError(400, message, param=unknown[0], code="unsupported_parameter")
    path, problem = paths[0], problems[0]
    if problem["type"] == "misplaced":
        found = problem["ctx"]["names"]
        message = f"not supported here: {', '.join(map(repr, found))}; {problem['msg']}"
        return ApiError(400, message, param=found[0], code="unsupported_parameter")
    if not path:
        return ApiError(400, "the body is JSON, but no object; send one")
    param = ".".join(path)
    if problem["type"] == NO_SHAPE:
        return ApiError(400, f"{param}: {problem['msg']}", param=param)
    if problem["type"] == "missing" and _unshaped(path[:-1], path) is None:
        return missing(param)
    if (index := _unshaped(path, path)) is not None:
        param = ".".join(path[: index + 1])
        return ApiError(400, f"{param}: {_EXPECTED[path[index]]}", param=param)
    branches = [
        humanise(each)
        for there, each in zip(paths, problems, strict=True)
        if there[:-1] == path[:-1] and there and _BRANCH.match(there[-1])
    ]
    if len(branches) > 1 and all(reason.startswith("must be ") for reason in branches):
        param = ".".join(path[:-1])
        kinds = dict.fromkeys(reason.removeprefix("must be ") for reason in branches)
        return ApiError(400, f"{param} must be {' or '.join(kinds)}", param=param)
    return ApiError(400, f"{param} {humanise(problem)}", param=param)


def missing(param: str) -> ApiError:
    """Return the error for a field that must be there.

    Args:
        param: the field.
    """
    return ApiError(400, f"{param} {MISSING}; give it", param=param)


def _plain(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem whose location is that of the field, without the word for the whole."""
    loc, kind = tuple(map(str, problem["loc"][1:])), problem["type"]
    if kind == INCOMPLETE:
        loc, kind = (*loc, problem["ctx"]["name"]), "missing"
    return {**problem, "loc": loc, "type": kind}


def _of_given_shapes(problems: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return what is wrong within the shapes that were given; if nothing is, all problems, as none of them fits."""
    inner = []
    for problem in problems:
        loc = problem["loc"]
        shapes = [at for at in range(1, len(loc) - 1) if loc[at - 1] in _OBJECTS and _SHAPE.match(loc[at])]
        if shapes:
            kept = tuple(part for at, part in enumerate(loc) if at not in shapes)
            inner.append({**problem, "loc": kept})
    others = [each for each in problems if not any(part in _OBJECTS for part in each["loc"][:-1])]
    return [*inner, *others] if inner else problems


def _unshaped(parts: Sequence[str], path: Sequence[str]) -> int | None:
    """Return which of the first parts of a path is a field that has none of its shapes."""
    for index, part in enumerate(parts):
        is_within = part in _OBJECTS and index + 1 < len(path) and not _SHAPE.match(path[index + 1])
        if part in _EXPECTED and not is_within:
            return index
    return None


def _of_framework(error: HTTPException) -> ApiError:
    messages = {
        404: "there is nothing at this path; /openapi.json lists what there is",
        405: "this path does not take the method; /openapi.json lists them",
    }
    code = "request_too_large" if error.status_code == 413 else None
    return ApiError(error.status_code, messages.get(error.status_code, error.detail), code=code)


def printable(name: str) -> str:
    """Return a name that a client made up, short and without control characters."""
    return "".join(character if character.isprintable() else "?" for character in name[:64])
