"""``speculant config show``: every setting as it is now, and where it comes from."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr
from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import printable
from speculant_graph.config import (
    ClientConfig,
    DraftConfig,
    GenerationConfig,
    GraphConfig,
    ServerConfig,
    ServiceConfig,
    VerifierConfig,
)
from speculant_graph.config_learning import DraftModelConfig, RecordConfig, TrainConfig
from speculant_graph.settings import SECTIONS, CommandSettings, config_file, load_settings, load_with_sources
from speculant_graph.settings_errors import origin_of

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
    """Where it comes from: "default", a file or an environment variable."""
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
    sys.stdout.write(_as_json(shown) if options.json_output else _as_toml(shown))
    return 0


def _collect(arguments: Sequence[str], sections: Sequence[str]) -> dict[str, dict[str, _Shown]]:
    settings, sources = load_with_sources(AllSettings, "config", arguments)
    shown: dict[str, dict[str, _Shown]] = {}
    for section in sections:
        shown[section] = {}
        for name, value in getattr(settings, section):
            is_secret = isinstance(value, SecretStr)
            origin = str(origin_of((section, name), sources) or "default")
            shown[section][name] = _Shown(_MASK if is_secret else _plain(value), origin, is_secret)
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value


def _as_json(shown: Mapping[str, Mapping[str, _Shown]]) -> str:
    report = {
        section: {name: {"value": one.value, "origin": one.origin} for name, one in settings.items()}
        for section, settings in shown.items()
    }
    return json.dumps(report) + "\n"


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
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value) if isinstance(value, float) else str(int(value))
        case str():
            return _toml_string(value)
        case list() | tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case dict():
            pairs = [f"{_toml_string(key)} = {_toml_value(item)}" for key, item in value.items()]
            return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise TypeError(f"no TOML for {type(value).__name__}")


def _toml_string(text: str) -> str:
    # TOML knows no half surrogate pairs, which stand for bytes of file names that are no UTF-8.
    encodable = text.encode(errors="backslashreplace").decode()
    return '"' + "".join(map(_toml_character, encodable)) + '"'


def _toml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
