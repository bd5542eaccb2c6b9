"""Reads a command's settings, which the classes in :mod:`.config` declare.

Precedence: flags > environment > TOML file > defaults.

A command declares a :class:`CommandSettings` whose sections are configuration classes. For example, the field
``max_order`` of the section ``graph`` has the flag ``--graph.max-order`` and the variable
``SPECULANT_GRAPH__MAX_ORDER``. The field also has the short flag ``--max-order`` if no other section has a field of
that name. In the TOML file, this field is ``max_order`` under ``[graph]``. The TOML file is ``speculant.toml`` unless
``--config`` or ``SPECULANT_CONFIG`` names another. Flags may have underscores instead of hyphens. All commands share
one TOML file, and each command reads only the sections that it knows.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from speculant_graph.arguments import parse_verbatim
from speculant_graph.base_config import names_in, shown_problem
from speculant_graph.config import (
    AccessConfig,
    ClientConfig,
    DraftConfig,
    DraftModelConfig,
    FoldConfig,
    GenerationConfig,
    GraphConfig,
    RecordConfig,
    ServerConfig,
    ServiceConfig,
    TrainConfig,
    VerifierConfig,
)
from speculant_graph.errors import ConfigError
from speculant_graph.help_format import HelpFormatter
from speculant_graph.similar import question

CONFIG_VARIABLE = "SPECULANT_CONFIG"
DEFAULT_FILE = Path("speculant.toml")


TypedPath = Annotated[Path, "as typed"]
"""Type of the paths in a list of arguments; each path is kept exactly as typed."""


def _as_list(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError):  # otherwise it is a file name
            return json.loads(value)
    return [value] if isinstance(value, str | os.PathLike) else value


LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(lambda level: str(level).upper())]
"""The lowest level of messages to show, in upper or lower case."""
GraphPaths = Annotated[list[TypedPath], NoDecode, BeforeValidator(_as_list)]
"""Graph files to draft from as layers: one path, or a list of paths. For a list of paths, the flag is repeated. An
environment variable contains a list of paths as JSON."""


_OF_DRAFTS = {"max-depth"}
"""Names of settings that exist both in ``[draft]`` and for requests. The short flag of these names sets the setting in
``[draft]``."""
_FAMILIAR = {"tokenizer-name": "tokenizer", "model-name": "model", "address": "drafter", "attention": "attn"}
"""Maps a setting's name to an additional flag with a more common name."""


class CommandSettings(BaseSettings):
    """Base class of every command's settings. A subclass's docstring appears at the top of its command's ``--help``."""

    model_config = SettingsConfigDict(
        env_prefix="SPECULANT_",
        env_nested_delimiter="__",
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
        cli_parse_none_str="(none)",  # shown in help; no user would type it
        use_attribute_docstrings=True,
        extra="ignore",
        frozen=True,
    )

    config: Path | None = None
    """TOML file with settings; by default speculant.toml in the current folder, if it exists."""


class ReportingSettings(CommandSettings):
    """Base class for the settings of commands that report figures."""

    json_output: bool = False
    """Print the figures as one JSON object on the last line."""


class AllSettings(CommandSettings):
    """Every section."""

    graph: GraphConfig = GraphConfig()
    draft: DraftConfig = DraftConfig()
    draft_model: DraftModelConfig = DraftModelConfig()
    verifier: VerifierConfig = VerifierConfig()
    record: RecordConfig = RecordConfig()
    train: TrainConfig = TrainConfig()
    generation: GenerationConfig = GenerationConfig()
    client: ClientConfig = ClientConfig()
    server: ServerConfig = ServerConfig()
    fold: FoldConfig = FoldConfig()
    service: ServiceConfig = ServiceConfig()
    access: AccessConfig = AccessConfig()


SECTIONS = tuple(name for name in AllSettings.model_fields if name != "config")
"""Names of the tables that a TOML file of settings may have."""

Settings = TypeVar("Settings", bound=CommandSettings)


def load_settings(
    kind: type[Settings], command: str, arguments: Sequence[str], given: Mapping[str, Any] | None = None
) -> Settings:
    """Read a command's settings from all sources.

    Args:
        kind: the class of settings.
        command: the command's name, for messages.
        arguments: the command line.
        given: values that a program sets instead of a command line; each section is a table.

    Raises:
        ConfigError: a source has a wrong value; the message is one line that names the setting.
        SystemExit: ``--help`` is among the arguments.
    """
    return load_with_sources(kind, command, arguments, given)[0]


def load_with_sources(
    kind: type[Settings], command: str, arguments: Sequence[str], given: Mapping[str, Any] | None = None
) -> tuple[Settings, Sequence[PydanticBaseSettingsSource]]:
    """Read settings as :func:`load_settings` does; also return the sources of the values, in order of precedence."""
    _require_known_variables()
    path = config_file(arguments)
    sources: list[PydanticBaseSettingsSource] = []

    class Loaded(kind):  # type: ignore[misc,valid-type]
        __doc__ = kind.__doc__

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            flags = flags_of(settings_cls, kind, command, list(arguments))
            toml = () if path is None else (TomlConfigSettingsSource(settings_cls, path),)
            sources[:] = (flags, init_settings, env_settings, *toml)
            return tuple(sources)

    try:
        loaded: Settings = Loaded(**(given or {}))
    except ValidationError as error:
        raise _setting_error(error, kind, sources) from error
    except SettingsError as error:
        raise _source_error(str(error), command, kind) from error
    return loaded, sources


def origin_of(section: str, name: str, sources: Sequence[PydanticBaseSettingsSource]) -> str:
    """Return the source of a setting's value: a TOML file's path, ``environment`` for other sources, or ``default``."""
    for source in sources:
        values = source().get(section)
        if isinstance(values, Mapping) and name in values:
            return str(source.toml_file_path) if isinstance(source, TomlConfigSettingsSource) else "environment"
    return "default"


def _source_error(text: str, command: str, kind: type[CommandSettings]) -> ConfigError:
    """Return the error for a command line or environment variable that can't be parsed; validation comes later."""
    reason = text.strip().splitlines()[-1].removeprefix("error parsing CLI: ")
    if table := re.search(r"for (\S+): not enough values", reason):
        return ConfigError(f"{table[1]} takes names and values", fix="write NAME=VALUE", field=table[1])
    if found := re.search(r'field "(\w+)" from source "EnvSettingsSource"', reason):
        section = f"SPECULANT_{found[1]}".upper()
        named = " or ".join(name for name in os.environ if name.upper().partition("__")[0] == section)
        return ConfigError(f"{named} can't be read", fix="lists and tables in variables are JSON")
    if found := re.search(r'field "(\w+)" from source "CliSettingsSource"', reason):
        group = kind.model_fields.get(found[1])
        fields = getattr(group and group.annotation, "model_fields", {})
        example = f"such as --{found[1]}.{next(iter(fields)).replace('_', '-')}" if fields else "see --help"
        return ConfigError(f"--{found[1]} is a group of settings", fix=f"name one of them, {example}", field=found[1])
    return ConfigError(reason, fix=f"correct it; see speculant {command} --help")


def _setting_error(
    error: ValidationError, kind: type[CommandSettings], sources: Sequence[PydanticBaseSettingsSource]
) -> ConfigError:
    """Return pydantic's first error as an error that names the setting and the file or variable that sets it."""
    first: Any = error.errors()[0]
    location = names_in(first["loc"], kind)
    field = ".".join(location)
    origin = origin_of(location[0], location[1], sources) if len(location) > 1 else "default"
    variable = f"SPECULANT_{'__'.join(location).upper()}"
    if origin == "environment" and variable in os.environ:
        origin = variable
    file = f"{origin}: " if origin not in ("default", "environment") else ""
    if first["type"] == "extra_forbidden":
        asked = question(field, [f"{location[0]}.{name}" for name in _fields_of(location[0])])
        fix = f"{asked} --help lists the settings".strip()
        return ConfigError(f"{file}there is no setting {field}", fix=fix, field=field)
    return ConfigError(f"{file}{shown_problem(first, field)}", field=field)


def flags_of(
    settings_cls: type[BaseSettings], kind: type[CommandSettings], command: str, arguments: list[str] | None
) -> CliSettingsSource[Any]:
    """Return a command's flags as a source of settings; if ``arguments`` is None, no command line is parsed."""
    return CliSettingsSource[Any](
        settings_cls,
        cli_prog_name=f"speculant {command}",
        cli_parse_args=arguments,
        cli_shortcuts=_shortcuts(kind),
        parse_args_method=partial(parse_verbatim, _typed_lists(kind)),
        add_argument_method=_add_argument,
        formatter_class=HelpFormatter,
    )


_SECTION_FLAGS = {"--draft-model.name": "--draft-model", "--record.folder": "--record", "--access.file": "--access"}
"""Maps a setting's flag to its short form, which is the name of the setting's section. Without this table, pydantic
would take the short form as the flag of the whole section, and expect JSON after it."""


def _add_argument(group: Any, *names: str, **options: Any) -> None:
    is_switch = "action" in options  # not a section, but a switch of the demo
    if options.get("nargs") == "*" and names[0].startswith("-"):
        options["action"] = "extend"  # a repeated flag adds to its list, as for flags with one value
    if is_switch or not any(name in _SECTION_FLAGS.values() for name in names):
        group.add_argument(*names, *(_SECTION_FLAGS[name] for name in names if name in _SECTION_FLAGS), **options)


def _typed_lists(kind: type[CommandSettings]) -> frozenset[str]:
    """Return the names of settings that are lists of paths or texts; within a section, names are ``section.name``."""
    fields = {name: info.annotation for name, info in kind.model_fields.items()}
    for section, inner in list(fields.items()):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            fields |= {f"{section}.{name}": info.annotation for name, info in inner.model_fields.items()}
    return frozenset(
        name for name, annotation in fields.items() if annotation in (list[TypedPath], list[str], tuple[str, ...])
    )


def _shortcuts(kind: type[CommandSettings]) -> dict[str, str | list[str]]:
    """Return short flags.

    The short flag for the output is ``-o``. A field that only one section has gets its own name as short flag. If
    several sections have the field, the short flag sets the request's field: ``--temperature`` sets the sampling
    temperature of the generated text. A draft model's field gets the short flag only if no other section has the field:
    ``--device`` sets the device of the target model.
    """
    fields = [
        (section.replace("_", "-"), name.replace("_", "-"))
        for section, info in kind.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
        for name in info.annotation.model_fields
    ]
    taken = Counter(name for section, name in fields if section != "draft-model")
    taken += Counter(name.replace("_", "-") for name in kind.model_fields)
    short: dict[str, str | list[str]] = {
        f"{section}.{name}": name
        for section, name in fields
        if taken[name] == int(section != "draft-model")
        or (section == "generation" and name not in _OF_DRAFTS)
        or (section == "draft" and name in _OF_DRAFTS)
    }
    for section, name in fields:
        if name in _FAMILIAR:
            short[f"{section}.{name}"] = [name, _FAMILIAR[name]]
    aliases = {"output": "o", "json-output": "json"}
    if "graph" not in kind.model_fields:  # otherwise it is a section
        aliases["graph-path"] = "graph"  # like the sidecar's flag; a graph's name at a sidecar is used less often
        if "graph_path" in kind.model_fields:
            short.pop("client.graph", None)
    for name, alias in aliases.items():
        if name.replace("-", "_") in kind.model_fields:
            short[name] = alias
    return short


def _require_known_variables() -> None:
    """Reject environment variables that would have no effect: their section is unknown, or they lack the ``__``."""
    single = {f"{section}_{name}": (section, name) for section in SECTIONS for name in _fields_of(section)}
    for variable in os.environ:
        if not variable.lower().startswith("speculant_"):
            continue
        setting = variable.lower().removeprefix("speculant_")
        section, separator, _ = setting.partition("__")
        if separator and section not in SECTIONS:
            raise _unknown_section(f"the variable {variable}", section)
        if setting in single:
            right = "__".join(single[setting]).upper()
            raise ConfigError(f"the variable {variable} sets nothing", fix=f"write SPECULANT_{right}")


def _fields_of(section: str) -> Mapping[str, object]:
    kind = AllSettings.model_fields[section].annotation
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def _unknown_section(where: str, section: str) -> ConfigError:
    return ConfigError(f"{where} is for an unknown section [{section}]", fix=f"it may be: {', '.join(SECTIONS)}")


def config_file(arguments: Sequence[str]) -> Path | None:
    """Return the path of the TOML file for a command line; None if there is no such file.

    Raises:
        ConfigError: the file can't be read, is not TOML, or has unknown sections.
    """
    options = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    options.add_argument("--config", default=os.environ.get(CONFIG_VARIABLE), nargs="?")
    named = options.parse_known_args(list(arguments))[0].config
    path = Path(named) if named else DEFAULT_FILE
    if not named and not path.is_file():
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "it can't be opened"
        raise ConfigError(
            f"can't read the configuration file '{path}': {reason}", fix="name another with --config"
        ) from error
    except ValueError as error:  # UTF-8 or TOML
        raise ConfigError(f"the configuration file '{path}' is not TOML: {error}", fix="correct it there") from error
    for section, values in content.items():
        if not isinstance(values, dict):
            raise ConfigError(f"'{path}': {section} is in no section", fix="write it under one, such as [draft]")
        if section not in SECTIONS:
            raise _unknown_section(f"a table of '{path}'", section)
    return path
