"""Ignores the harmless unsupported fields of a request, and refuses the other unsupported fields by name.

A field is harmless if it does not change the answer; examples are ``store`` and ``metadata``. Unknown fields are also
ignored, as in other servers of this API, unless a name looks like a misspelt known name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, ClassVar

from loguru import logger
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from speculant_graph.similar import similar

_MAX_UNKNOWN = 8
"""Maximum number of refused fields that are reported, so that a body full of errors delays no other request."""
_MAX_NAMED = 32
_MAX_COMPARED = 64
_LONGEST_COMPARED = 40
_RESEMBLANCE = 0.86
"""Smallest difflib ratio to a known name at which a name counts as misspelt; 'max_token' and 'temprature' reach this
ratio."""

_OF_ANSWERS = frozenset(
    {
        *("frequency_penalty", "ignore_eos", "input", "instructions", "logit_bias", "logprobs"),
        *("max_completion_tokens", "max_output_tokens", "max_tokens", "messages", "min_p", "min_tokens", "n"),
        *("parallel_tool_calls", "prediction", "presence_penalty", "previous_response_id", "prompt"),
        *("reasoning", "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop", "stop_token_ids"),
        *("structured_outputs", "text", "tool_choice", "tools", "top_k", "top_logprobs", "top_p"),
    }
)
"""Fields that change the answer, and that only some endpoints support."""
_OF_OTHERS = frozenset(
    {
        *("audio", "background", "best_of", "conversation", "echo", "function_call", "functions", "modalities"),
        *("suffix", "web_search_options"),
        *("add_generation_prompt", "allowed_token_ids", "bad_words", "chat_template", "chat_template_kwargs"),
        *("continue_final_message", "documents", "enable_thinking", "grammar", "guided_choice", "guided_grammar"),
        *("guided_json", "guided_regex", "include_stop_str_in_output", "json_schema", "length_penalty"),
        *("logits_processors", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search"),
        *("ebnf", "regex", "no_repeat_ngram_size", "repeat_last_n", "repeat_penalty", "top_a", "typical_p"),
        *("mirostat", "mirostat_eta", "mirostat_tau", "n_predict", "tfs_z", "xtc_probability", "xtc_threshold"),
        *("dry_multiplier", "dynatemp_range", "samplers"),
    }
)
"""Fields of OpenAI's API and of other servers that no endpoint supports."""
INCOMPLETE = "incomplete"
"""Type of the error that :func:`require_fields` raises."""
NO_SHAPE = "no_shape"
"""Type of an error whose message says which value to send."""
REFUSED = _OF_ANSWERS | _OF_OTHERS
"""Top-level request fields that change the answer. An endpoint refuses each of these fields that it does not
support."""

_ignored: ContextVar[list[str] | None] = ContextVar("ignored", default=None)


@contextmanager
def one_line_of_ignored() -> Iterator[None]:
    """Log all fields ignored in this context, including fields of nested objects, in one debug line."""
    names: list[str] = []
    token = _ignored.set(names)
    try:
        yield
    finally:
        _ignored.reset(token)
        if names:
            logger.debug("ignored: {}", ", ".join(map(repr, dict.fromkeys(names))))


def record_ignored(name: str) -> None:
    """Add an ignored field to the log line that :func:`one_line_of_ignored` writes."""
    names = _ignored.get()
    if names is not None and len(names) < _MAX_NAMED:
        names.append(name[:64])


class Schema(BaseModel):
    """Base class of request objects: values are not converted to other types; harmless unknown fields are ignored."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
        json_schema_extra=lambda schema: schema.pop("additionalProperties", None) and None,
    )
    refused: ClassVar[frozenset[str]] = frozenset()
    """Names of unsupported fields that are refused instead of ignored."""
    refuses_unknown: ClassVar[bool] = False
    """Whether all unknown fields are refused, as in objects that exist only in this server's API."""

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        known = {field.alias or name for name, field in cls.model_fields.items()}
        given = {name: value for name, value in values.items() if value is not None}
        num_refused = 0
        for index, name in enumerate([name for name in given if name not in known]):
            is_refused = cls.refuses_unknown or name in cls.refused or (index < _MAX_COMPARED and _resembles(name, cls))
            num_refused += is_refused
            if not is_refused:
                record_ignored(name)
            if not is_refused or num_refused > _MAX_UNKNOWN:
                del given[name]
        return given


def require_fields(schema: Schema, names: Iterable[str]) -> None:
    """Refuse an object that lacks a required field of its type.

    Args:
        schema: the object.
        names: the required fields.

    Raises:
        PydanticCustomError: the object lacks a field; the error's context has the field's ``name``.
    """
    for name in names:
        if getattr(schema, name) is None:
            raise PydanticCustomError(INCOMPLETE, "lacks {name}", {"name": name})


def text_or_list(listed: Callable[[str], list[Any]]) -> Callable[[object], object]:
    """Return a validator that converts a text to a list before the field is parsed as a list.

    Args:
        listed: converts a text to a list.
    """

    def read(value: object) -> object:
        if not isinstance(value, str | list):
            raise PydanticCustomError("text_or_list", "must be a text or a list")
        return listed(value) if isinstance(value, str) else value

    return read


def resembled(name: str, known: Iterable[str]) -> str:
    """Return the known name that a misspelt name resembles; empty if it resembles none."""
    if len(name) > _LONGEST_COMPARED:
        return ""
    return similar(name, known, _RESEMBLANCE) or ""


@lru_cache(maxsize=4_096)
def _resembles(name: str, schema: type[Schema]) -> bool:
    return bool(resembled(name, [field.alias or own for own, field in schema.model_fields.items()]))
