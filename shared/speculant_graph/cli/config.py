"""``speculant config``: prints every setting's value and source, or an example file with all settings."""

from __future__ import annotations

import json
import sys
import textwrap
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
_WIDTH = 114
_EXAMPLE = """\
# Every setting with its default. Copy to speculant.toml in the folder where you run 'speculant', keep what you change.
# Flags (--graph.max-order) and environment variables (SPECULANT_GRAPH__MAX_ORDER) come before it.
"""


class ConfigSettings(CommandSettings):
    """Print all settings, from the environment and the configuration file, as TOML that can be saved."""

    action: CliPositionalArg[Literal["show", "example"]] = "show"
    """'show' prints current values and their sources; 'example' prints a file with all defaults and explanations."""
    section: str | None = None
    """Only this section."""


def run(arguments: Sequence[str]) -> int:
    """Print the settings.

    Raises:
        ConfigError: a setting is wrong.
    """
    options = load_settings(ConfigSettings, "config", arguments)
    if options.section not in (None, *SECTIONS):
        raise ConfigError(f"there is no section {options.section}", fix=f"choose one of: {', '.join(SECTIONS)}")
    sections = SECTIONS if options.section is None else (options.section,)
    if options.action == "example":
        classes = {section: AllSettings.model_fields[section].annotation for section in sections}
        sys.stdout.write("\n".join((_EXAMPLE, *(_example(section, each) for section, each in classes.items()))))
        return 0
    path = config_file(arguments)
    settings, sources = load_with_sources(AllSettings, "config", [] if path is None else [f"--config={path}"])
    sys.stdout.write("\n".join(_as_toml(section, getattr(settings, section), sources) for section in sections))
    return 0


def _example(section: str, settings: Any) -> str:
    """Return a section's default settings as TOML, with an explanation of each setting.

    Args:
        section: its name.
        settings: the section's class, a subclass of :class:`Config`.
    """
    lines = [f"[{section}]  # {settings.__doc__.splitlines()[0]}"]
    for name, value in settings():
        text = " ".join((settings.model_fields[name].description or "").split())
        lines += textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
        lines.append(f'# {name} = ""' if value is None else f"{name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def _as_toml(section: str, settings: Config, sources: Sequence[PydanticBaseSettingsSource]) -> str:
    lines = [f"[{section}]"]
    for name, value in settings:
        is_set = value is not None and not isinstance(value, SecretStr)
        shown = _toml_value(value) if is_set else '""' if value is None else f'"{_MASK}"'
        origin = origin_of(section, name, sources)
        lines.append(f"{'' if is_set else '# '}{name} = {shown}  # {printable(origin)}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """Return a value as TOML. TOML and JSON write tables, infinity and terminal control characters differently."""
    match value:
        case dict():
            items = [f"{_toml_value(key)} = {_toml_value(item)}" for key, item in value.items()]
            return f"{{ {', '.join(items)} }}" if items else "{}"
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
