"""``speculant completion``: prints a script, made by shtab, that lets a shell complete commands, flags and values."""

from __future__ import annotations

import importlib
import re
import sys
from argparse import Action, ArgumentParser
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

import shtab
from pydantic_settings import CliPositionalArg

from speculant_graph.cli.bench import BENCHES
from speculant_graph.cli.main import COMMANDS
from speculant_graph.settings import CommandSettings, flags_of, load_settings


class CompletionSettings(CommandSettings):
    """Print a completion script for a shell. docs/terminal.md explains its installation."""

    shell: CliPositionalArg[Literal["bash", "zsh", "tcsh", "fish"]]
    """Shell."""


def run(arguments: Sequence[str]) -> int:
    """Print the script."""
    settings = load_settings(CompletionSettings, "completion", arguments)
    root = ArgumentParser("speculant")
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = root.add_subparsers()
    for name, (target, _, what) in COMMANDS.items():
        if name != "bench":
            _add_parser(commands, name, target.partition(":")[0], name, what)
    benches = commands.add_parser("bench", help=COMMANDS["bench"][2]).add_subparsers()
    for name, (module, what) in BENCHES.items():
        _add_parser(benches, name, module, f"bench-{name}", what)
    sys.stdout.write(shtab.complete(root, shell=settings.shell))
    return 0


def _add_parser(commands: Any, name: str, module: str, settings_name: str, what: str) -> None:
    """Add a command, and its flags if its settings class (such as ``BenchBuildSettings``) can be imported."""
    try:
        kind = getattr(importlib.import_module(module), f"{settings_name.title().replace('-', '')}Settings", None)
    except ImportError:
        kind = None
    if kind is None:
        commands.add_parser(name, help=what)
        return
    flags = flags_of(kind, kind, name, None).root_parser
    parser = commands.add_parser(name, help=what, parents=[flags], add_help=False)
    for action in parser._actions:
        action.help = " ".join(action.help.split()).split(". ")[0]
        action.choices = _choices(action, kind)
        if action.choices is None and action.nargs != 0:
            action.complete = shtab.FILE


def _choices(action: Action, kind: type[CommandSettings]) -> Sequence[str] | None:
    """Return the values that an option or positional argument allows; None if it takes any value."""
    if action.option_strings:
        shown = re.search(r"\{(.*)\}", str(action.metavar))
        return shown[1].split(",") if shown else None
    annotation = kind.model_fields[action.dest].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else None
