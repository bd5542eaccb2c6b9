"""``speculant config show``: every setting as it is now, and where it comes from."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr
from pydantic_settings import CliPositionalArg, PydanticBaseSettingsSource, TomlConfigSettingsSource

from speculant_graph.cli.terminal import printable
from speculant_graph.config import (
    ClientConfig,
    DraftConfig,
    DraftModelConfig,
    GenerationConfig,
    GraphConfig,
    RecordConfig,
    ServerConfig,
    ServiceConfig,
    TrainConfig,
    VerifierConfig,
)
from speculant_graph.settings import SECTIONS, CommandSettings, config_file, load_settings, load_with_sources

_MASK = "********"


Section = Literal[
    "graph", "draft", "draft_model", "verifier", "record", "train", "generation", "client", "server", "service"
]


class ShowSettings(CommandSettings):
    """Show all settings as environment and configuration file make them, as TOML that could be saved."""

    action: CliPositionalArg[Literal["show"]] = "show"
    """What to do."""
    section: Section | None = None
    """Only this section."""
    json_output: bool = False
    """Print one JSON object instead."""


class AllSettings(CommandSettings):
    """Every section there is."""

    graph: GraphConfig = GraphConfig()
    draft: DraftConfig = DraftConfig()
    draft_model: DraftModelConfig = DraftModelConfig()
    verifier: VerifierConfig = VerifierConfig()
    record: RecordConfig = RecordConfig()
    train: TrainConfig = TrainConfig()
    generation: GenerationConfig = GenerationConfig()
    client: ClientConfig = ClientConfig()
    server: ServerConfig = ServerConfig()
    service: ServiceConfig = ServiceConfig()


@dataclass(frozen=True, slots=True)
class _Shown:
    """One setting."""

    value: Any
    """Its value, plain; None if it is not set."""
    origin: str
    """Where it comes from: "default", "environment" or a file."""
    is_secret: bool = False
    """The value is a mask."""


def run(arguments: Sequence[str]) -> int:
    """Print the settings.

    Raises:
        ConfigError: a setting is wrong.
    """
    options = load_settings(ShowSettings, "config", arguments)
    path = config_file(arguments)
    sections = SECTIONS if options.section is None else (options.section,)
    shown = _collect([] if path is None else [f"--config={path}"], sections)
    if options.json_output:
        report = {
            section: {name: {"value": one.value, "origin": one.origin} for name, one in values.items()}
            for section, values in shown.items()
        }
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write(_as_toml(shown))
    return 0


def _collect(arguments: Sequence[str], sections: Sequence[str]) -> dict[str, dict[str, _Shown]]:
    settings, sources = load_with_sources(AllSettings, "config", arguments)
    shown: dict[str, dict[str, _Shown]] = {}
    for section in sections:
        shown[section] = {}
        for name, value in getattr(settings, section):
            is_secret = isinstance(value, SecretStr)
            origin = _origin_of(section, name, sources)
            shown[section][name] = _Shown(_MASK if is_secret else _plain(value), origin, is_secret)
    return shown


def _origin_of(section: str, name: str, sources: Sequence[PydanticBaseSettingsSource]) -> str:
    for source in sources:
        if name in source().get(section, {}):
            return str(source.toml_file_path) if isinstance(source, TomlConfigSettingsSource) else "environment"
    return "default"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value


def _as_toml(shown: Mapping[str, Mapping[str, _Shown]]) -> str:
    parts = []
    for section, settings in shown.items():
        lines = [f"[{section}]"]
        for name, one in settings.items():
            is_set = one.value is not None and not one.is_secret
            value = '""' if one.value is None else _toml_value(one.value)
            lines.append(f"{'' if is_set else '# '}{name} = {value}  # {printable(one.origin)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _toml_value(value: Any) -> str:
    """Return a value as TOML, which is JSON for all but tables, infinity, and what a terminal would heed."""
    match value:
        case dict():
            return f"{{ {', '.join(f'{_toml_value(key)} = {_toml_value(item)}' for key, item in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case float():
            return repr(value)
        case str():
            text = json.dumps(value, ensure_ascii=False)
            return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in text)
    return json.dumps(value)
