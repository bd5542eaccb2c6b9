"""``speculant completion``: a script that completes commands, flags and values in a shell, made by shtab.

The script is made once, from the settings classes, and starts no Python while it completes.
"""

from __future__ import annotations

import importlib
import re
import sys
from argparse import Action, ArgumentParser
from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic_settings import CliPositionalArg

from speculant_graph.settings import CommandSettings, load_settings, make_parser


class CompletionSettings(CommandSettings):
    """Print a script for a shell. bash: source <(speculant completion bash), in ~/.bashrc.

    zsh: speculant completion zsh > a file named _speculant in a folder of $fpath.
    fish: speculant completion fish > ~/.config/fish/completions/speculant.fish
    """

    shell: CliPositionalArg[Literal["bash", "zsh", "fish", "tcsh"]]
    """Which shell."""


def run(arguments: Sequence[str]) -> int:
    """Print the script."""
    settings = load_settings(CompletionSettings, "completion", arguments)
    import shtab

    sys.stdout.write(shtab.complete(make_root_parser(), shell=settings.shell))
    return 0


def make_root_parser() -> ArgumentParser:
    """Return one parser of all commands; those of extras that are not installed have no flags."""
    from speculant_graph.cli.bench import BENCHES
    from speculant_graph.cli.main import COMMANDS

    root = ArgumentParser("speculant")
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = root.add_subparsers()
    for name, (module, _, what) in COMMANDS.items():
        if name == "bench":
            benches = commands.add_parser(name, help=what).add_subparsers()
            for bench, (bench_module, measures) in BENCHES.items():
                _add_parser(benches, bench, bench_module, measures)
        else:
            _add_parser(commands, name, module, what)
    return root


def _add_parser(commands: Any, name: str, module: str, what: str) -> None:
    kind = _settings_of(module)
    if kind is None:  # it is not installed, or reads no settings
        commands.add_parser(name, help=what)
        return
    parser = make_parser(kind, name)
    for action in parser._actions:
        _describe(action, kind)
    commands.add_parser(name, help=what, parents=[parser], add_help=False)


def _settings_of(module: str) -> type[CommandSettings] | None:
    """Return what a command's ``run`` reads: the first settings class that its module declares."""
    try:
        members = vars(importlib.import_module(module)).values()
    except ImportError:
        return None
    kinds = (each for each in members if isinstance(each, type) and issubclass(each, CommandSettings))
    return next((kind for kind in kinds if kind.__module__ == module), None)


def _describe(action: Action, kind: type[CommandSettings]) -> None:
    """Describe a value by the type that the help shows or the field has, and cut the help to a sentence."""
    import shtab

    metavar = str(action.metavar)
    if action.option_strings:
        names = re.fullmatch(r"(?:frozenset\[)?\{(.*)\}\]?", metavar)
        choices = tuple(names[1].split(",")) if names else ()
        takes_path = "Path" in metavar
    else:
        annotation = kind.model_fields[action.dest.split(":")[0].replace("-", "_")].annotation
        choices = get_args(annotation) if all(isinstance(each, str) for each in get_args(annotation)) else ()
        takes_path = not choices
    if choices:
        action.choices = choices
    if takes_path and action.nargs != 0:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    if action.help:
        action.help = " ".join(action.help.split()).split(". ")[0].replace("%", "%%")
