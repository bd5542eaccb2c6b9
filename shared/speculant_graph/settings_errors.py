"""What is wrong with a setting, in one line that names it as it was set."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    CliPositionalArg,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
    TomlConfigSettingsSource,
)

from speculant_graph.errors import ConfigError
from speculant_graph.validation_messages import humanise

_SECRET_WORDS = frozenset({"token", "key", "password"})
_POSITIONAL = get_args(CliPositionalArg[str])[1]

_VALUES = reprlib.Repr()
"""Shows values that were typed, and the ends of long ones."""
_VALUES.maxstring = _VALUES.maxlong = 120


def syntax_error(error: SettingsError, command: str) -> ConfigError:
    """Return which value could not be taken apart.

    Args:
        error: what a source of settings raised.
        command: the command's name.
    """
    reason = str(error).strip().splitlines()[-1].removeprefix("error parsing CLI: ")
    if match := re.fullmatch(r'error parsing value for field "(\w+)" from source "EnvSettingsSource"', reason):
        variable = f"SPECULANT_{match[1].upper()}"
        reason = f"{variable}, or one for a part of it, is no JSON, as lists and tables are: '[\"a\"]', '{{\"5\": 1}}'"
    elif match := re.fullmatch(r"Parsing error encountered for (\S+): .*", reason):
        reason = f"--{match[1].replace('_', '-')} is a table, written KEY=VALUE, once for each key"
    return ConfigError(reason, fix=f"see speculant {command} --help")


def setting_error(
    kind: type[BaseModel], error: ValidationError, sources: Iterable[PydanticBaseSettingsSource]
) -> ConfigError:
    """Return pydantic's first error as one of the setting, named as it was set.

    Args:
        kind: what was to be read.
        error: what pydantic raised.
        sources: where values come from, those that win first.
    """
    first: Any = error.errors()[0]
    # Keys of tables are named [key], items of lists by their numbers: neither is in the name of a setting.
    location = [part for part in first["loc"] if isinstance(part, str) and part != "[key]"]
    origin = origin_of(location, sources)
    field = ".".join(location)
    if isinstance(origin, Path):
        name = f"{'.'.join(location[1:])} of [{location[0]}] in '{origin}'"
    elif first["type"] == "extra_forbidden":
        name = origin or repr(field)
    else:
        name = origin or _name_of_flag(kind, location)
    if first["type"] == "extra_forbidden":
        return ConfigError(f"there is no setting {name}", fix="--help lists those there are", field=field)
    value = first.get("input")
    is_shown = isinstance(value, str | int | float) and not _SECRET_WORDS & set(location[-1].split("_"))
    shown = str(value).lower() if isinstance(value, bool) else _VALUES.repr(value)
    return ConfigError(f"{name}: {humanise(first)}{f' (got {shown})' if is_shown else ''}", field=field)


def origin_of(location: Sequence[str], sources: Iterable[PydanticBaseSettingsSource]) -> str | Path | None:
    """Return the variable or the file that sets a setting; None if it is the command line, or nothing.

    Args:
        location: names, from the section on.
        sources: where values come from, those that win first.
    """
    for source in sources:
        found: Any = source()
        for name in location[:2]:
            found = found.get(name) if isinstance(found, dict) else None
        if found is None or (len(location) == 1 and isinstance(found, dict)):  # of a section much may be set elsewhere
            continue
        if isinstance(source, TomlConfigSettingsSource):
            return Path(str(source.toml_file_path))
        is_environment = isinstance(source, EnvSettingsSource) and not isinstance(source, CliSettingsSource)
        return _variable_of(location) if is_environment else None
    return None


def _variable_of(location: Sequence[str]) -> str | None:
    """Return the variable that sets a setting: its own, one for a part of it, or one for a whole section."""
    set_here = {variable.lower(): variable for variable in os.environ}
    for length in range(len(location), 0, -1):
        own = "speculant_" + "__".join(location[:length]).lower()
        parts = [variable for variable in set_here if variable.startswith(f"{own}__")] if length > 1 else []
        for variable in (own, *parts):
            if variable in set_here:
                return set_here[variable]
    return None


def _name_of_flag(kind: type[BaseModel], location: Sequence[str]) -> str:
    field = kind.model_fields.get(location[0])
    if field is not None and _POSITIONAL in field.metadata:
        return location[0].upper()
    flag, variable = ".".join(location).replace("_", "-"), "__".join(location).upper()
    return f"--{flag} (or SPECULANT_{variable})"
