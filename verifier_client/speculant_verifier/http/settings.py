"""A request's fields as settings of the library."""

from __future__ import annotations

import json
import secrets
from typing import Any

from pydantic import ValidationError

from speculant_graph.config import GenerationConfig
from speculant_verifier.http.errors import ApiError, of_validation
from speculant_verifier.http.schemas import ChatRequest, CompletionRequest
from speculant_verifier.model import TargetModel
from speculant_verifier.tool_calls.styles import STRICT

_MOST_DRAWN_SEED = 1 << 53
"""Seeds are given to clients whose only numbers are doubles."""

_SAME_NAMES = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens",
)  # fmt: skip


def generation_config(
    request: ChatRequest | CompletionRequest, defaults: GenerationConfig, target: TargetModel
) -> GenerationConfig:
    """Return the settings that a request means.

    Args:
        request: what it names.
        defaults: for what it does not name, but for ``n``, ``seed`` and ``logprobs``.
        target: the model, whose vocabulary and end tokens count.

    Raises:
        ApiError: two fields contradict each other, or one does not fit the model.
    """
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options needs stream = true; leave it out", param="stream_options")
    changes: dict[str, Any] = {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    changes["n"] = request.n or 1
    changes["seed"] = secrets.randbelow(_MOST_DRAWN_SEED) if request.seed is None else request.seed
    changes["logprobs"] = _num_logprobs(request)
    if (max_tokens := _max_tokens(request)) is not None:
        changes["max_tokens"] = max_tokens
    if request.top_k is not None:
        changes["top_k"] = max(0, request.top_k)
    if request.stop is not None:
        changes["stop"] = tuple(request.stop)
    if request.bad_words is not None:
        changes["bad_words"] = tuple(request.bad_words)
    if request.logit_bias is not None:
        changes["logit_bias"] = {int(token): bias for token, bias in request.logit_bias.items()}
        _require_known("logit_bias", changes["logit_bias"], target)
    if isinstance(request, ChatRequest) and request.prediction is not None:
        changes["prediction"] = request.prediction.text
    changes |= _form(request)
    if request.stop_token_ids is not None or request.ignore_eos:
        changes |= _ends(request, defaults, target)
    if request.speculant is not None:
        changes |= request.speculant.model_dump(exclude={"tenant", "graph", "learn"}, exclude_none=True)
    try:
        config = GenerationConfig.model_validate(defaults.model_dump() | changes)
    except ValidationError as error:
        complaints = error.errors(include_url=False, include_input=False)
        raise of_validation([{**each, "loc": ("settings", *each["loc"])} for each in complaints]) from None
    if config.min_tokens > config.max_tokens:
        raise ApiError(
            400,
            f"min_tokens {config.min_tokens} is more than max_tokens {config.max_tokens}; lower it",
            param="min_tokens",
        )
    return config


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
    fields = {"json_schema": other.json_, "regex": other.regex, "choices": other.choice, "grammar": other.grammar}
    form |= {name: value for name, value in fields.items() if value is not None}
    if len(form) != 1:
        raise ApiError(
            400,
            "structured_outputs takes one of json, regex, choice and grammar, and no response_format beside it",
            param="structured_outputs",
        )
    if "choices" in form:
        form["choices"] = tuple(form["choices"])
    if isinstance(form.get("json_schema"), dict):
        form["json_schema"] = json.dumps(form["json_schema"])
    return form


def _max_tokens(request: ChatRequest | CompletionRequest) -> int | None:
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    if newer is not None and request.max_tokens not in (None, newer):
        raise ApiError(400, "max_tokens and max_completion_tokens differ; give one", param="max_tokens")
    return newer or request.max_tokens


def _num_logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        if request.best_of not in (None, request.n or 1):
            raise ApiError(
                400,
                "not supported here: 'best_of' other than n; leave it out",
                param="best_of",
                code="unsupported_value",
            )
        return request.logprobs
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs = true; set it", param="top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def _ends(
    request: ChatRequest | CompletionRequest, defaults: GenerationConfig, target: TargetModel
) -> dict[str, object]:
    own = target.end_token_ids if defaults.end_token_ids is None else frozenset(defaults.end_token_ids)
    more = request.stop_token_ids or ()
    _require_known("stop_token_ids", more, target)
    ends = frozenset(more) | (frozenset() if request.ignore_eos else own)
    return {"end_token_ids": tuple(sorted(ends)), "ignore_end_tokens": not ends}


def _require_known(param: str, tokens: Any, target: TargetModel) -> None:
    for token in tokens:
        if token >= target.vocabulary_size:
            raise ApiError(
                400,
                f"{param} names token {token}, but the model knows 0 to {target.vocabulary_size - 1}; "
                "use its own tokenizer",
                param=param,
            )
