"""What is wrong with a setting, in one line that names it as whoever set it knows it."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ByteSize, ValidationError
from pydantic_settings import (
    CliPositionalArg,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
    TomlConfigSettingsSource,
)

from speculant_graph.complaints import plainly

_SECRET_WORDS = frozenset({"token", "key", "password"})

_VALUES = reprlib.Repr()
"""Shows values that were typed, the ends of those that nobody typed by hand."""
_VALUES.maxstring = _VALUES.maxlong = 120

_POSITIONAL = get_args(CliPositionalArg[str])[1]
_KINDS: dict[type, str] = {list: "a list", dict: "a table"}
"""Values that are not shown."""


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
    """Put the first complaint of pydantic into one line that names the setting as it was set.

    Args:
        kind: what was to be read.
        error: what pydantic said.
        sources: where values come from, those that win first.
    """
    first: Any = error.errors()[0]
    # Keys of tables are named [key], items of lists by their numbers: neither is in the name of a setting.
    location = [part for part in first["loc"] if isinstance(part, str) and part != "[key]"]
    place = _place_of(location, sources)
    if first["type"] == "extra_forbidden":
        return f"there is no setting {place or repr('.'.join(location))}; --help lists those there are"
    value = first.get("input")
    is_shown = isinstance(value, str | int | float) and not _SECRET_WORDS & set(location[-1].split("_"))
    shown = str(value).lower() if isinstance(value, bool) else _VALUES.repr(value)
    if first["type"].endswith("_type") and type(value) in _KINDS:
        is_shown, shown = True, _KINDS[type(value)]
    got = f" (got {shown})" if is_shown else ""
    message = plainly(first["msg"])
    if first["type"] in ("byte_size", "byte_size_unit"):
        message = "write a number of bytes, as 2GB or 512MB"
    elif first["type"] == "missing":
        message = "is missing; give it"
    elif first["type"] == "greater_than_equal" and _is_size(kind, location):
        message = f"give at least {ByteSize(first['ctx']['ge']).human_readable(decimal=True).replace('.0', '')}"
    elif first["type"] in ("model_type", "model_attributes_type"):
        message = "is a section; set each of its settings, or all of them as one JSON object"
    return f"{place or _shown_name(kind, location)}: {message}{got}"


def variable_of(*location: str) -> str | None:
    """Return the environment variable that sets a setting: its own, one for a part of it, or one for a whole section.

    Args:
        location: names, from the section on.
    """
    set_here = {variable.lower(): variable for variable in os.environ}
    for length in range(len(location), 0, -1):
        own = "speculant_" + "__".join(location[:length]).lower()
        parts = [variable for variable in set_here if variable.startswith(f"{own}__")] if length > 1 else []
        for variable in (own, *parts):
            if variable in set_here:
                return set_here[variable]
    return None


def _place_of(location: Sequence[str], sources: Iterable[PydanticBaseSettingsSource]) -> str | None:
    """Return what a setting is called where it was set: in a file or by a variable; None on the command line."""
    for source in sources:
        found: Any = source()
        for name in location[:2]:
            found = found.get(name) if isinstance(found, dict) else None
        if found is None or (len(location) == 1 and isinstance(found, dict)):  # of a section much may be set elsewhere
            continue
        if isinstance(source, TomlConfigSettingsSource):
            section, *names = location
            return f"{'.'.join(names)} of [{section}] in '{source.toml_file_path}'"
        is_environment = isinstance(source, EnvSettingsSource) and not isinstance(source, CliSettingsSource)
        return variable_of(*location) if is_environment else None
    return None


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
