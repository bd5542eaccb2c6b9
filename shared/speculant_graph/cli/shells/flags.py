"""What can be completed of a command, read from the parser that its settings make."""

from __future__ import annotations

import re
from argparse import Action
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from speculant_graph.settings import CommandSettings, make_parser

_MOST_OF_HELP = 60


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag under all of its names."""

    names: tuple[str, ...]
    """As they are typed, dashes included."""
    what: str
    """What it does, in a few words."""
    takes_value: bool
    """Whether a value follows."""
    choices: tuple[str, ...] = ()
    """What the value may be; empty if it may be anything."""
    is_file: bool = False
    """Whether the value is a path."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A command, or a part of one."""

    name: str
    """As it is typed."""
    what: str
    """What it does."""
    flags: tuple[Flag, ...]
    """Its flags."""
    words: tuple[str, ...]
    """What its first argument may be; empty: files."""
    subcommands: tuple[Completion, ...]
    """What its first argument names, instead."""


def all_of(commands: Sequence[Completion]) -> Iterator[tuple[str, Completion]]:
    """Yield commands and their subcommands, with what is typed for each."""
    for command in commands:
        yield command.name, command
        for each in command.subcommands:
            yield f"{command.name} {each.name}", each


def completion_of(name: str, what: str, kind: type[CommandSettings]) -> Completion:
    """Return what completes a command.

    Args:
        name: as it is typed.
        what: it does.
        kind: its settings.
    """
    parser = make_parser(kind, name)
    flags = [_flag(action) for action in parser._actions if action.option_strings]
    positionals = [action for action in parser._actions if not action.option_strings]
    words = _choices_of_field(kind, positionals[0]) if positionals else ()
    return Completion(name, what, tuple(flags), words, ())


def _flag(action: Action) -> Flag:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    takes_value = action.nargs != 0
    return Flag(
        names=tuple(sorted(action.option_strings, key=lambda name: (not name.startswith("--"), len(name), name))),
        what=_short(action.help or ""),
        takes_value=takes_value,
        choices=_choices(metavar) if takes_value else (),
        is_file=takes_value and "Path" in metavar,
    )


def _choices(metavar: str) -> tuple[str, ...]:
    """Return the members of '{a,b}'; of a set of them all and each."""
    match = re.fullmatch(r"(?:frozenset\[)?\{(.*)\}\]?", metavar)
    return tuple(name.strip() for name in match[1].split(",")) if match else ()


def _choices_of_field(kind: type[CommandSettings], action: Action) -> tuple[str, ...]:
    """Return what a positional argument may be, by its annotation: the parser does not know it."""
    annotation: Any = kind.model_fields[action.dest.split(":")[0].replace("-", "_")].annotation
    arguments = getattr(annotation, "__args__", ())
    return tuple(arguments) if arguments and all(isinstance(each, str) for each in arguments) else ()


def _short(text: str) -> str:
    """Return the first clause of a help text, on one line, without characters that shells would read."""
    first = re.split(r"(?<=\w)[.;:(]\s|\. |\(default", " ".join(text.split()))[0].rstrip(" .;:")
    plain = re.sub(r"[^\w ,./+-]", "", first)
    return plain if len(plain) <= _MOST_OF_HELP else plain[:_MOST_OF_HELP].rsplit(" ", 1)[0] + " ..."
