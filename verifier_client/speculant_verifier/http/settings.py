"""A request's fields as settings of the library."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

from speculant_graph.config import GenerationConfig
from speculant_verifier.http.errors import ApiError
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest
from speculant_verifier.model import TargetModel
from speculant_verifier.requests import changed
from speculant_verifier.tool_calls.styles import STRICT

_MAX_DRAWN_SEED = 1 << 53
"""Seeds are given to clients whose only numbers are doubles."""

_SAME_NAMES = (
    "max_tokens", "n", "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "min_tokens", "seed",
)  # fmt: skip
_CONVERTED: dict[str, Callable[[Any], object]] = {
    "top_k": lambda k: max(0, k),
    "stop": tuple,
    "bad_words": tuple,
    "logit_bias": lambda biases: {int(token): bias for token, bias in biases.items()},
    "prediction": lambda prediction: prediction.text,
}
"""Fields of the same name, whose values are not the same."""
_OF_DRAFTER = {"tenant", "graph", "learn"}


def generation_config(
    request: ChatRequest | CompletionRequest, defaults: GenerationConfig, target: TargetModel
) -> GenerationConfig:
    """Return the settings that a request means.

    Args:
        request: what it names.
        defaults: for what it does not name, but for ``n``, ``seed`` and ``logprobs``.
        target: the model, whose end tokens count.

    Raises:
        ApiError: two fields contradict each other.
        GenerationRequestError: a value is not allowed.
    """
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options needs stream = true; leave it out", param="stream_options")
    wanted: dict[str, Any] = {"n": 1, "seed": secrets.randbelow(_MAX_DRAWN_SEED)}
    wanted |= {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    for name, convert in _CONVERTED.items():
        if (value := getattr(request, name, None)) is not None:
            wanted[name] = convert(value)
    wanted |= _of_chat(request) if isinstance(request, ChatRequest) else _of_completion(request)
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
        raise ApiError(400, "max_tokens and max_completion_tokens differ; give one", param="max_tokens")
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs = true; set it", param="top_logprobs")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return {"logprobs": logprobs} | ({} if newer is None else {"max_tokens": newer})


def _of_completion(request: CompletionRequest) -> dict[str, Any]:
    if request.best_of not in (None, request.n or 1):
        raise ApiError(400, "best_of: not served other than n; leave it out", param="best_of")
    return {"logprobs": request.logprobs}


def _form(request: ChatRequest | CompletionRequest) -> dict[str, Any]:
    """Return the settings of the answer's form."""
    given = request.response_format if isinstance(request, ChatRequest) else None
    form: dict[str, Any] = {}
    if given is not None and given.type == "json_object":
        form["json_schema"] = '{"type": "object"}'
    elif given is not None and given.type == "json_schema":
        if given.json_schema is None:
            raise ApiError(400, "response_format lacks json_schema; give it", param="response_format.json_schema")
        schema = given.json_schema.schema_
        if given.json_schema.strict and isinstance(schema, dict):
            schema = {**schema, "x-guidance": STRICT}
        form["json_schema"] = json.dumps(schema)
    if (other := request.structured_outputs) is None:
        return form
    own = json.dumps(other.json_) if isinstance(other.json_, dict) else other.json_
    choices = None if other.choice is None else tuple(other.choice)
    fields = {"json_schema": own, "regex": other.regex, "choices": choices, "grammar": other.grammar}
    form |= {name: value for name, value in fields.items() if value is not None}
    if len(form) != 1:
        message = "structured_outputs takes one of json, regex, choice and grammar, and no response_format beside it"
        raise ApiError(400, message, param="structured_outputs")
    return form
