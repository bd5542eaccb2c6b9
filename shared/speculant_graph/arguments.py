"""Parses a command line verbatim, without the conversions of argparse and pydantic."""

from __future__ import annotations

import json
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from typing import Any

from speculant_graph.errors import ConfigError
from speculant_graph.similar import question

_BOOLEANS = ("true", "false")


def parse_verbatim(typed_lists: frozenset[str], parser: ArgumentParser, *arguments: Any) -> Namespace:
    """Parse a command line; lists become JSON, because pydantic would split their items at commas."""
    parsed: Namespace
    rest, switches = _take_switches(parser, _with_dashes(parser, arguments[0]))
    parsed, unknown = ArgumentParser.parse_known_args(parser, rest, *arguments[1:])
    if unknown:
        asked = question(unknown[0].partition("=")[0], parser._option_string_actions)
        see = f"{asked} See" if asked else "see"
        raise ConfigError(f"unknown arguments: {' '.join(unknown)}", fix=f"{see} {parser.prog} --help")
    for name, value in switches.items():
        setattr(parsed, name, value)
    for name, value in vars(parsed).items():
        if isinstance(value, list) and name in typed_lists:
            setattr(parsed, name, json.dumps(value))
    return parsed


def _with_dashes(parser: ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Return a command line with dashes instead of underscores in flags such as ``--graph.max_order``."""
    known = {name for flag in parser._option_string_actions for name in (flag, flag.replace("--no-", "--", 1))}
    flags = list(arguments)
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        flag, equals, value = argument.partition("=")
        if flag not in known and (dashed := flag.replace("_", "-")) in known:
            flags[index] = f"{dashed}{equals}{value}"
    return flags


def _take_switches(parser: ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Remove boolean switches and their values, such as ``--measure-costs false``, from a command line.

    Returns:
        The remaining arguments, and the values of the removed switches by argparse destination. The values of the
        switches are validated like values from a TOML file.
    """
    switches: dict[str, str] = {}
    names: dict[str, str] = {}
    for flag, action in parser._option_string_actions.items():
        if isinstance(action.const, bool):
            names[flag if action.const else flag.replace("--no-", "--", 1)] = action.dest
        elif isinstance(action, BooleanOptionalAction) and not flag.startswith("--no-"):
            names[flag] = action.dest
    rest: list[str] = []
    left = list(arguments)
    while left:
        if (argument := left.pop(0)) == "--":
            return [*rest, argument, *left], switches
        flag, has_value, value = argument.partition("=")
        if flag not in names:
            rest.append(argument)
        elif has_value or not left or left[0] not in _BOOLEANS:
            switches[names[flag]] = value if has_value else "true"
        else:
            switches[names[flag]] = left.pop(0)
    return rest, switches
