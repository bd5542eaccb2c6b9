"""What is wrong with a setting, in one line that names it as whoever set it knows it."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ByteSize, ValidationError
from pydantic_settings import CliPositionalArg, PydanticBaseSettingsSource, SettingsError, TomlConfigSettingsSource

from speculant_graph.complaints import plainly

_SECRET_WORDS = frozenset({"token", "key", "password"})

_VALUES = reprlib.Repr()
"""Shows values that were typed, the ends of those that nobody typed by hand."""
_VALUES.maxstring = _VALUES.maxlong = 120

_POSITIONAL = get_args(CliPositionalArg[str])[1]


def explain_syntax(kind: type[BaseModel], error: SettingsError) -> str:
    """Say which value could not be taken apart, and how it is written.

    Args:
        kind: what was to be read.
        error: what a source of settings said.
    """
    reason = str(error).strip().splitlines()[-1].removeprefix("error parsing CLI: ")
    if match := re.fullmatch(r'error parsing value for field "(\w+)" from source "EnvSettingsSource"', reason):
        variable = _variable_without_json(kind, match[1])
        return f"{variable} is no JSON; lists and tables are, such as '[\"a\"]' or '{{\"5\": 1}}'"
    if match := re.fullmatch(r"Parsing error encountered for (\S+): .*", reason):
        flag = match[1].replace("_", "-")
        return f"--{flag} can't be taken apart; tables are written KEY=VALUE, once for each key"
    if (match := re.fullmatch(r"unrecognized arguments: ([^-].*)", reason)) is not None:
        return f"nothing takes '{match[1]}' where it stands; put the flag that takes it before it"
    return reason


def _variable_without_json(kind: type[BaseModel], section: str) -> str:
    """Return the name of the variable that should hold a list or a table and does not."""
    inner = kind.model_fields[section].annotation
    fields = inner.model_fields if isinstance(inner, type) and issubclass(inner, BaseModel) else {}
    for name, info in fields.items():
        variable = f"SPECULANT_{section}__{name}".upper()
        value = next((value for key, value in os.environ.items() if key.upper() == variable), None)
        if value is not None and get_origin(info.annotation) in (list, tuple, dict, frozenset):
            try:
                json.loads(value)
            except ValueError:
                return variable
    return f"SPECULANT_{section}".upper()


def explain(kind: type[BaseModel], error: ValidationError, sources: Iterable[PydanticBaseSettingsSource]) -> str:
    """Put the first complaint of pydantic into one line that names the setting as help does, or its place in a file.

    Args:
        kind: what was to be read.
        error: what pydantic said.
        sources: where values come from, those that win first.
    """
    first: Any = error.errors()[0]
    # Keys of tables are named [key], items of lists by their numbers: neither is in the name of a setting.
    location = [part for part in first["loc"] if isinstance(part, str) and part != "[key]"]
    file = _file_of(location, sources)
    if first["type"] == "extra_forbidden":
        name = f"'{'.'.join(location)}'" if file is None else _shown_place(location, file)
        return f"there is no setting {name}; --help lists those there are"
    value = first.get("input")
    is_shown = isinstance(value, str | int | float) and not _SECRET_WORDS & set(location[-1].split("_"))
    shown = str(value).lower() if isinstance(value, bool) else _VALUES.repr(value)
    got = f" (got {shown})" if is_shown else ""
    message = plainly(first["msg"])
    if first["type"] in ("byte_size", "byte_size_unit"):
        message = "write a number of bytes, as 2GB or 512MB"
    elif first["type"] == "missing":
        message = "is missing; give it"
    elif first["type"] == "greater_than_equal" and _is_size(kind, location):
        message = f"give at least {ByteSize(first['ctx']['ge']).human_readable(decimal=True).replace('.0', '')}"
    name = _shown_name(kind, location) if file is None else _shown_place(location, file)
    return f"{name}: {message}{got}"


def _file_of(location: Sequence[str], sources: Iterable[PydanticBaseSettingsSource]) -> object:
    """Return the file that the setting of a section has its value from; None if it comes from elsewhere."""
    for source in sources:
        values: Any = source()
        if len(location) > 1 and location[1] in (values.get(location[0]) or ()):
            return source.toml_file_path if isinstance(source, TomlConfigSettingsSource) else None
    return None


def _shown_place(location: Sequence[str], file: object) -> str:
    section, *names = location
    return f"{'.'.join(names)} of [{section}] in '{file}'"


def _is_size(kind: type[BaseModel], location: Sequence[str]) -> bool:
    annotation: Any = kind
    for name in location:
        is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        annotation = annotation.model_fields[name].annotation if is_section else None
    return annotation is ByteSize


def _shown_name(kind: type[BaseModel], location: Sequence[str]) -> str:
    field = kind.model_fields.get(location[0])
    if field is not None and _POSITIONAL in field.metadata:
        return location[0].upper()
    flag, variable = ".".join(location).replace("_", "-"), "__".join(location).upper()
    return f"--{flag} (or SPECULANT_{variable})"
