"""Errors in the formats of OpenAI's and Anthropic's APIs.

Each error message is one line. If a fix for the problem is known, the message ends with it. Messages of exceptions from
Python or a library appear only in the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from speculant_graph.errors import (
    ANSWERS,
    AccessError,
    ApiError,
    GenerationRequestError,
    SpeculantError,
    UnauthenticatedError,
)
from speculant_graph.validation_messages import expected_by, humanise
from speculant_verifier.http.fields import INCOMPLETE, NO_SHAPE, REFUSED, resembled
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest, SpeculantOptions
from speculant_verifier.http.tool_schemas import ChosenTool

_TEXTUAL = 'give text, or a list of parts such as {"type": "text", "text": "Hello"}'
Fields = dict[str, Any]
"""A JSON object."""
_EXPECTED = {
    "prompt": "give text, a list of texts, token ids, or a list of lists of token ids; none of them may be empty",
    "stop": "give a text or a list of at most 16, each of 1 to 1024 characters",
    "logit_bias": "give an object of at most 1024 numbers from -100 to 100, by token ids in decimal digits",
    "content": _TEXTUAL,
    "output": _TEXTUAL,
    "summary": _TEXTUAL,
    "tool_choice": "give 'none', 'auto', 'required', or one of the tools by its type and name",
    "background": "only false is served; leave it out",
}
"""Advice for fields that accept several types; pydantic's separate message for each type would be confusing."""
_BRANCH = re.compile(r"(str|bool|int|(constrained-)?(str|int)|(dict|list)\[.*)$")
"""Matches pydantic's names for the types in a union."""
_OBJECTS = ("content", "output", "summary", "tool_choice")
"""Fields of ``_EXPECTED`` that may hold objects; an error inside such an object names the exact location."""
_SHAPE = re.compile(rf"((list|literal)\[.*|str|{ChosenTool.__name__})$")
"""Matches pydantic's names for the types of the fields in ``_OBJECTS``."""
MISSING = "is missing, or null"
_OF_LIBRARY = {"end_token_ids": "stop_token_ids", "ignore_end_tokens": "ignore_eos"}
"""Maps names of the library's settings to field names in requests, where the two names differ."""
_FIELDS = ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()


def openai_fields(error: SpeculantError) -> Fields:
    """Return an error in OpenAI's format."""
    answer = ANSWERS[error.kind]
    return {
        "error": {"message": str(error), "type": answer.openai, "param": error.field or None, "code": answer.code},
    }


def anthropic_fields(error: SpeculantError) -> Fields:
    """Return an error in Anthropic's format."""
    return {"type": "error", "error": {"type": ANSWERS[error.kind].anthropic, "message": str(error)}}


def error_of(error: Exception) -> SpeculantError:
    """Return the error that the client gets for an exception in the server."""
    match error:
        case RequestValidationError():
            return of_validation(error.errors())
        case UnauthenticatedError():
            fix = "send 'Authorization: Bearer KEY'"
            return ApiError(error.kind, "the key is missing or unknown", fix=fix)
        case AccessError() if error.field:
            return error.renamed(f"speculant.{error.field}")
        case GenerationRequestError():
            return of_library(error)
        case HTTPException():
            return _of_framework(error)
        case SpeculantError() if ANSWERS[error.kind].http != 500:
            return error
    return ApiError("internal", "the server failed", fix="give its operator the x-request-id")


def of_library(error: GenerationRequestError) -> GenerationRequestError:
    """Return a library error, with its field renamed to the request's field."""
    field = _OF_LIBRARY.get(error.field, error.field)
    if field in SpeculantOptions.model_fields and field not in _FIELDS:
        field = f"speculant.{field}"
    return error.renamed(field)


def no_such_model(model_id: str) -> ApiError:
    """Return the error for an unknown model name.

    Args:
        model_id: the served model's name for clients.
    """
    return ApiError("model_not_found", "there is no such model", fix=f"ask for '{model_id}'", field="model")


def of_validation(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return one error for all problems that pydantic found.

    If there are unsupported fields, the error reports up to eight of them in one message. If all fields are supported,
    the error reports the first problem.

    Args:
        problems: pydantic's errors; each location begins with the name of the validated whole, such as "body".
    """
    problems = _of_given_shapes([_plain(problem) for problem in problems])
    paths = [[printable(part) for part in problem["loc"]] for problem in problems]
    unknown = [
        ".".join(path)
        for path, problem in zip(paths, problems, strict=True)
        if problem["type"] == "extra_forbidden" and _unshaped(path[:-1], path) is None
    ]
    if unknown:
        meant = resembled(unknown[0], _FIELDS - {unknown[0]}) if unknown[0] not in REFUSED else ""
        remedy = f"write '{meant}', or leave it out" if meant else "leave it out"
        return unsupported(unknown[0], remedy, unknown[1:8])
    path, problem = paths[0], problems[0]
    if problem["type"] == "misplaced":
        found = problem["ctx"]["names"]
        return unsupported(found[0], problem["msg"], found[1:])
    if not path:
        return wrong("the body is JSON, but not an object", fix="send one")
    param = ".".join(path)
    if problem["type"] == NO_SHAPE:
        return wrong(f"{{field}}: {problem['msg']}", param)
    if problem["type"] == "missing" and _unshaped(path[:-1], path) is None:
        return missing(param)
    if (index := _unshaped(path, path)) is not None:
        param = ".".join(path[: index + 1])
        return wrong(f"{{field}}: {_EXPECTED[path[index]]}", param)
    branches = [
        expected_by(each)
        for there, each in zip(paths, problems, strict=True)
        if there[:-1] == path[:-1] and there and _BRANCH.match(there[-1])
    ]
    if len(branches) > 1 and all(branches):
        param = ".".join(path[:-1])
        return wrong(f"{{field}} must be {' or '.join(dict.fromkeys(branches))}", param)
    return wrong(f"{{field}} {humanise(problem)}", param)


def missing(param: str) -> ApiError:
    """Return the error for a missing field.

    Args:
        param: the field.
    """
    return wrong(f"{{field}} {MISSING}", param, fix="give it")


def wrong(message: str, param: str = "", *, fix: str = "") -> ApiError:
    """Return the error for a field with a wrong value.

    Args:
        message: the problem; ``{field}`` stands for the field's name.
        param: the field.
        fix: how to correct the request.
    """
    return ApiError("wrong_request", message, fix=fix, field=param)


def unsupported(param: str, fix: str, others: Sequence[str] = (), reason: str = "") -> ApiError:
    """Return the error for unsupported fields.

    Args:
        param: the first field.
        fix: how to correct the request.
        others: the other fields.
        reason: why the fields are unsupported, with the punctuation between their names and this reason.
    """
    names = ", ".join(("'{field}'", *(f"'{name}'" for name in others)))
    return ApiError("unsupported_parameter", f"not supported here: {names}{reason}", fix=fix, field=param)


def _plain(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem with its location reduced to the field's path, without a leading name such as "body"."""
    loc, kind = tuple(map(str, problem["loc"][1:])), problem["type"]
    if kind == INCOMPLETE:
        loc, kind = (*loc, problem["ctx"]["name"]), "missing"
    return {**problem, "loc": loc, "type": kind}


def _of_given_shapes(problems: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Drop the problems of union types that do not match the value; keep all problems if no type matches."""
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
    """Return the index, within a path, of the first field whose value fits no type of the field's union."""
    for index, part in enumerate(parts):
        is_within = part in _OBJECTS and index + 1 < len(path) and not _SHAPE.match(path[index + 1])
        if part in _EXPECTED and not is_within:
            return index
    return None


def _of_framework(error: HTTPException) -> ApiError:
    if error.status_code == 405:
        return ApiError("wrong_method", "this path does not take the method", fix="/openapi.json lists them")
    if error.status_code == 404:
        return ApiError("no_such_path", "there is nothing at this path", fix="/openapi.json lists what there is")
    return wrong(error.detail)


def printable(name: str) -> str:
    """Return a name from a client's request, shortened and without control characters."""
    return "".join(character if character.isprintable() else "?" for character in name[:64])
