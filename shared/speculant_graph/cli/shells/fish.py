"""The script for fish, 3.0 or newer."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph.cli.shells.flags import Completion, Flag


def fish_script(commands: Sequence[Completion]) -> str:
    """Return the script."""
    lines = [
        "# fish completion for speculant; made by: speculant completion fish",
        "complete -c speculant -f",
        "complete -c speculant -n __fish_use_subcommand -s h -l help -d 'list the commands'",
        "complete -c speculant -n __fish_use_subcommand -s V -l version -d 'show the version'",
    ]
    for command in commands:
        lines.append(f"complete -c speculant -n __fish_use_subcommand -a {command.name} -d {_quoted(command.what)}")
        condition = f"__fish_seen_subcommand_from {command.name}"
        if not command.subcommands:
            lines += _lines(command, f"string match -q -- {command.name} (commandline -opc)[2]")
            continue
        names = " ".join(each.name for each in command.subcommands)
        for each in command.subcommands:
            lines.append(
                f"complete -c speculant -n '{condition}; and not __fish_seen_subcommand_from {names}' "
                f"-a {each.name} -d {_quoted(each.what)}"
            )
            inner = (
                f"string match -q -- {command.name} (commandline -opc)[2]; "
                f"and string match -q -- {each.name} (commandline -opc)[3]"
            )
            lines += _lines(each, inner)
    return "\n".join(lines) + "\n"


def _lines(command: Completion, condition: str) -> list[str]:
    head = f"complete -c speculant -n '{condition}'"
    lines = [f"{head} {_flag(flag)}" for flag in command.flags]
    lines.append(f"{head} -a '{' '.join(command.words)}'" if command.words else f"{head} -F")
    return lines


def _flag(flag: Flag) -> str:
    names = " ".join(_name(name) for name in flag.names)
    value = ""
    if flag.choices:
        value = f" -x -a '{' '.join(flag.choices)}'"
    elif flag.takes_value:
        value = " -r -F" if flag.is_file else " -x"
    return f"{names}{value} -d {_quoted(flag.what)}"


def _name(name: str) -> str:
    if name.startswith("--"):
        return f"-l {name.removeprefix('--')}"
    return f"-{'s' if len(name) == 2 else 'o'} {name.removeprefix('-')}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
