"""Formats the ``--help`` texts of all commands."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from typing import Any

_HELP_WIDTH = 100
_KINDS = {"Path": "FILE", "str": "TEXT", "int": "N", "float": "X", "ByteSize": "SIZE", "SecretStr": "SECRET"}


class HelpFormatter(RawDescriptionHelpFormatter):
    """Formatter that lists each flag once, shows values as users type them, and omits missing defaults."""

    def __init__(self, prog: str, **options: Any) -> None:
        """Make a formatter from the arguments that argparse passes."""
        width = min(shutil.get_terminal_size((_HELP_WIDTH, 24)).columns, _HELP_WIDTH)
        super().__init__(prog, **{"max_help_position": 28, "width": width - 2} | options)

    def add_usage(
        self, usage: str | None, actions: Iterable[Action], groups: Iterable[Any], prefix: str | None = None
    ) -> None:
        """Omit the flags from the usage: there are many, and the help lists them below."""
        super().add_usage(usage, [action for action in actions if not action.option_strings], (), prefix)

    def _format_usage(
        self, usage: str | None, actions: Iterable[Action], groups: Iterable[Any], prefix: str | None
    ) -> str:
        shown = super()._format_usage(usage, actions, groups, prefix).rstrip()
        head = f"usage: {self._prog}"
        return f"{shown.replace(head, f'{head} [OPTIONS]', 1)}\n\n"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
        options: dict[str, Any] = {"initial_indent": indent, "subsequent_indent": indent, "break_on_hyphens": False}
        return "\n\n".join(textwrap.fill(" ".join(part.split()), width, **options) for part in paragraphs)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: Action) -> str:
        """Return all names of a flag, followed once by the placeholder of its value."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        if action.nargs == 0:
            return names
        return f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"

    def _get_help_string(self, action: Action) -> str:
        help_text = re.sub(r" \(default: (\(none\)|None|False|\{\}|\(\)|\[\])?\)$", "", action.help or "")
        help_text = re.sub(r"frozenset\(\{(.*)\}\)", lambda match: _names(match[1]), help_text)
        is_switch_off = action.nargs == 0 and all("--no-" in name for name in action.option_strings)
        return help_text.replace("(default: True)", "(on unless this is given)") if is_switch_off else help_text

    def _metavar_formatter(self, action: Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        format_metavar = super()._metavar_formatter(action, default_metavar)
        return lambda size: tuple(_shown_kind(name) for name in format_metavar(size))


def _shown_kind(kind: str) -> str:
    """Return the placeholder that ``--help`` shows for a value of the named type."""
    kind = re.sub(r"frozenset\[\{(.*)\}\]", r"\1", kind)
    if kind.startswith("dict["):
        return "KEY=VALUE"
    return _KINDS.get(re.sub(r"^(?:tuple|list)\[(\w+).*", r"\1", kind), kind)


def _names(members: str) -> str:
    """Return the members of a set, which is given in Python's notation, sorted and separated by commas."""
    return ",".join(sorted(member.strip("' ") for member in members.split(",")))
