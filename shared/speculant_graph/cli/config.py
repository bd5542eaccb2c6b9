"""``speculant config show``: shows the current value and the source of every setting."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr
from pydantic_settings import CliPositionalArg, PydanticBaseSettingsSource

from speculant_graph.base_config import Config
from speculant_graph.errors import ConfigError
from speculant_graph.file_names import displayed
from speculant_graph.settings import (
    SECTIONS,
    AllSettings,
    CommandSettings,
    config_file,
    load_settings,
    load_with_sources,
    origin_of,
)
from speculant_graph.terminal import printable

_MASK = "********"


class ConfigSettings(CommandSettings):
    """Show all settings from environment and configuration file, as TOML that you can save."""

    action: CliPositionalArg[Literal["show"]] = "show"
    """Action."""
    section: str | None = None
    """Only this section."""


def run(arguments: Sequence[str]) -> int:
    """Print the settings.

    Raises:
        ConfigError: a setting is wrong.
    """
    options = load_settings(ConfigSettings, "config", arguments)
    path = config_file(arguments)
    settings, sources = load_with_sources(AllSettings, "config", [] if path is None else [f"--config={path}"])
    sections = SECTIONS if options.section is None else (options.section,)
    if sections[0] not in SECTIONS:
        raise ConfigError(f"there is no section {sections[0]}", fix=f"choose one of: {', '.join(SECTIONS)}")
    sys.stdout.write("\n".join(_as_toml(section, getattr(settings, section), sources) for section in sections))
    return 0


def _as_toml(section: str, settings: Config, sources: Sequence[PydanticBaseSettingsSource]) -> str:
    lines = [f"[{section}]"]
    for name, value in settings:
        is_set = value is not None and not isinstance(value, SecretStr)
        shown = _toml_value(value) if is_set else '""' if value is None else f'"{_MASK}"'
        origin = origin_of(section, name, sources)
        lines.append(f"{'' if is_set else '# '}{name} = {shown}  # {printable(origin)}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """Return a value as TOML. JSON would write tables, infinity and terminal control characters differently."""
    match value:
        case dict():
            return f"{{ {', '.join(f'{_toml_value(key)} = {_toml_value(item)}' for key, item in value.items())} }}"
        case frozenset():
            return _toml_value(sorted(value))
        case list() | tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case float():
            return repr(value)
        case str() | Path():
            text = json.dumps(displayed(str(value)), ensure_ascii=False)
            return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in text)
    return json.dumps(value)
