"""What is done with fields that nothing here serves: harmless ones are ignored, others are refused by their name.

A field is harmless if an answer without it is an answer to the same question, such as ``store`` or ``metadata``. What
nobody has heard of is ignored, too, as servers of this API do, unless it is a known name that was spelt wrong.
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
"""Of fields that are refused a few are looked at: a body that is wrong all over must not hold up others."""
_MAX_NAMED = 32
_MAX_COMPARED = 64
_LONGEST_COMPARED = 40
_RESEMBLANCE = 0.86
"""By difflib's ratio: 'max_token' is as near to 'max_tokens', and 'temprature' to 'temperature'."""

_OF_ANSWERS = frozenset(
    {
        *("frequency_penalty", "ignore_eos", "input", "instructions", "logit_bias", "logprobs"),
        *("max_completion_tokens", "max_output_tokens", "max_tokens", "messages", "min_p", "min_tokens", "n"),
        *("parallel_tool_calls", "prediction", "presence_penalty", "previous_response_id", "prompt"),
        *("reasoning", "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop", "stop_token_ids"),
        *("structured_outputs", "text", "tool_choice", "tools", "top_k", "top_logprobs", "top_p"),
    }
)
"""What one endpoint or the other serves: where it does not, the answer would be another one."""
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
"""Of OpenAI's API, and of other servers."""
INCOMPLETE = "incomplete"
"""Type of the error of :func:`require_fields`."""
NO_SHAPE = "no_shape"
"""Type of an error whose message says what to give."""
REFUSED = _OF_ANSWERS | _OF_OTHERS
"""Top-level fields that change what is answered, where an endpoint does not serve them."""

_ignored: ContextVar[list[str] | None] = ContextVar("ignored", default=None)


@contextmanager
def one_line_of_ignored() -> Iterator[None]:
    """Write one line to the debug log with all fields, of objects within objects, too, that are ignored meanwhile."""
    names: list[str] = []
    token = _ignored.set(names)
    try:
        yield
    finally:
        _ignored.reset(token)
        if names:
            logger.debug("ignored: {}", ", ".join(map(repr, dict.fromkeys(names))))


def record_ignored(name: str) -> None:
    """Add what is ignored to the line that :func:`one_line_of_ignored` writes."""
    names = _ignored.get()
    if names is not None and len(names) < _MAX_NAMED:
        names.append(name[:64])


class Schema(BaseModel):
    """Base: no conversions; of unknown names only those that matter are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
        json_schema_extra=lambda schema: schema.pop("additionalProperties", None) and None,
    )
    refused: ClassVar[frozenset[str]] = frozenset()
    """Names that this object does not have, and that are not ignored."""
    refuses_unknown: ClassVar[bool] = False
    """Whether none is ignored: an object of this server's own."""

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
    """Refuse an object that lacks a field which its type must have.

    Args:
        schema: the object.
        names: what it must have.

    Raises:
        PydanticCustomError: it lacks the field ``name`` of the context.
    """
    for name in names:
        if getattr(schema, name) is None:
            raise PydanticCustomError(INCOMPLETE, "lacks {name}", {"name": name})


def text_or_list(listed: Callable[[str], list[Any]]) -> Callable[[object], object]:
    """Return what a field does with a value before it is read as a list, if a text stands for a list.

    Args:
        listed: returns the list that a text stands for.
    """

    def read(value: object) -> object:
        if not isinstance(value, str | list):
            raise PydanticCustomError("text_or_list", "must be a text or a list")
        return listed(value) if isinstance(value, str) else value

    return read


def resembled(name: str, known: Iterable[str]) -> str:
    """Return the known name that another one was meant to be; nothing if it is a name of its own."""
    if len(name) > _LONGEST_COMPARED:
        return ""
    return similar(name, known, _RESEMBLANCE) or ""


@lru_cache(maxsize=4_096)
def _resembles(name: str, schema: type[Schema]) -> bool:
    return bool(resembled(name, [field.alias or own for own, field in schema.model_fields.items()]))
