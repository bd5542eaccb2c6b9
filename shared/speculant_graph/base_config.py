"""The base class of all settings, and its messages about invalid values."""

from __future__ import annotations

import codecs
import re
import reprlib
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize, ConfigDict, ValidationError, ValidationInfo, field_validator

from speculant_graph.errors import ConfigError
from speculant_graph.similar import question
from speculant_graph.validation_messages import humanise

_SIZE = re.compile(r"\s*[0-9]*\.?[0-9]+\s*[A-Za-z]*\s*")
_NO_FILE_ENCODINGS = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"})


class Config(BaseModel):
    """Base class of all settings: frozen, refuses unknown names, and documented by its attribute docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    def __init__(self, **values: Any) -> None:
        """Make settings from keyword arguments.

        Raises:
            ConfigError: a value is invalid, or a setting does not exist.
        """
        try:
            super().__init__(**values)
            return
        except ValidationError as error:
            wrong = setting_error(error, type(self))
        raise wrong  # raised outside of the handler, because pydantic's error would keep all callers' frames alive

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # nested settings don't call it

    @classmethod
    def section(cls) -> str:
        """Return the name of this section of settings: ``draft_model``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Config")).lower()

    @field_validator("*", mode="before")
    @classmethod
    def _is_of_its_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse values that pydantic would misread: true as 1, and 50% as 50 bytes."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation is not bool and bool not in get_args(annotation):
            raise ValueError("must not be true or false")
        if annotation is ByteSize and isinstance(value, str) and not _SIZE.fullmatch(value):
            raise ValueError("must be a number of bytes, such as 6GB")
        return value


_SECRET_WORDS = frozenset({"token", "key", "password"})
_VALUES = reprlib.Repr()
"""Formatter for the invalid values that error messages quote; it shortens long values."""
_VALUES.maxstring = _VALUES.maxlong = 120


def shown_problem(problem: Mapping[str, Any], name: str) -> str:
    """Return a setting's problem as one line, with ``{field}`` in place of its name; secrets are not shown.

    Args:
        problem: one of pydantic's ``ValidationError.errors()``.
        name: name of the setting, with its section.
    """
    value = problem.get("input")
    is_shown = isinstance(value, str | int | float) and not _SECRET_WORDS & set(re.split(r"[._]", name))
    return f"{{field}}: {humanise(problem)}{f' (got {_VALUES.repr(value)})' if is_shown else ''}"


def names_in(location: Sequence[str | int], kind: type[BaseModel]) -> list[str]:
    """Return the names that lead to a setting, from the location of a pydantic error: ``["prediction"]``.

    Besides names of settings, a pydantic location has keys of tables (as ``[key]``) and indices of list items. If a
    setting may have several types, the location also has the name of a type.

    Args:
        location: the location of the error, relative to ``kind``.
        kind: the class of the settings, or a class whose fields are sections of settings.
    """
    names = [part for part in location if isinstance(part, str) and part != "[key]"]
    annotation = kind.model_fields[names[0]].annotation if names and names[0] in kind.model_fields else None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [names[0], *names_in(location[1:], annotation)]
    types = [each for each in get_args(annotation) if each is not type(None)]
    return names[:1] if get_origin(annotation) in (Union, UnionType) and len(types) > 1 else names


def setting_error(error: ValidationError, kind: type[Config]) -> ConfigError:
    """Return pydantic's first error as a ConfigError about a setting that Python code passed.

    Args:
        error: pydantic's errors.
        kind: the class of settings.
    """
    problem: Any = error.errors(include_url=False)[0]
    location = names_in(problem["loc"], kind)
    name = ".".join([kind.section(), *location])
    if problem["type"] == "extra_forbidden":
        fix = question(location[-1], kind.model_fields) or f"choose from {', '.join(kind.model_fields)}"
        return ConfigError(f"there is no setting {name}", fix=fix, field=name)
    return ConfigError(shown_problem(problem, name), fix="give another value", field=name)


def check_encoding(name: str) -> str:
    """Return the given name if it is 'auto' or a text encoding that Python knows.

    Raises:
        ValueError: Python knows no text encoding of this name.
    """
    try:
        is_text = name == "auto" or (
            codecs.lookup(name)._is_text_encoding and codecs.lookup(name).name not in _NO_FILE_ENCODINGS
        )
    except (LookupError, ValueError):
        is_text = False
    if not is_text:
        raise ValueError("must be 'auto' or a text encoding that Python knows, such as cp1252 or utf-16")
    return name
