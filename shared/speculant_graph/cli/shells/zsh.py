"""The script for zsh, 5.0 or newer."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph.cli.shells.flags import Completion, Flag, all_of

_TAIL = """\
if [[ $funcstack[1] == _speculant ]]; then
    _speculant "$@"
else
    compdef _speculant speculant
fi
"""


def zsh_script(commands: Sequence[Completion]) -> str:
    """Return the script; it works from a folder of $fpath, and if it is sourced after compinit."""
    parts = ["#compdef speculant\n# zsh completion for speculant; made by: speculant completion zsh\n"]
    for name, each in all_of(commands):
        parts.append(_choice(name, each.subcommands) if each.subcommands else _arguments(name, each))
    parts.append(_choice("", commands))
    return "".join([*parts, _TAIL])


def _function(name: str) -> str:
    return f"_speculant_{name.replace('-', '_').replace(' ', '_')}" if name else "_speculant"


def _choice(name: str, commands: Sequence[Completion]) -> str:
    """Return a function that completes the name of a command, and then what belongs to it."""
    described = "\n".join(f"        {_quoted(f'{each.name}:{_escaped(each.what)}')}" for each in commands)
    prefix = f"{name} " if name else ""
    cases = "\n".join(f"    {each.name}) {_function(prefix + each.name)} ;;" for each in commands)
    return (
        f"{_function(name)}() {{\n    if (( CURRENT == 2 )); then\n        local -a names=(\n{described}\n        )\n"
        f"        _describe -t commands command names\n        return\n    fi\n"
        f"    local name=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $name in\n{cases}\n    esac\n}}\n"
    )


def _arguments(name: str, command: Completion) -> str:
    specs = [_spec(flag, spelling) for flag in command.flags for spelling in flag.names]
    if command.words:
        specs += [_quoted(f"1: :({' '.join(command.words)})"), _quoted("*: :_files")]
    else:
        specs.append(_quoted("*: :_files"))
    lines = " \\\n        ".join(specs)
    return f"{_function(name)}() {{\n    _arguments \\\n        {lines}\n}}\n"


def _spec(flag: Flag, spelling: str) -> str:
    others = " ".join(flag.names)
    value = ""
    if flag.takes_value:
        action = f"({' '.join(flag.choices)})" if flag.choices else "_files" if flag.is_file else " "
        value = f": :{action}"
    equals = "=" if flag.takes_value and spelling.startswith("--") else ""
    return _quoted(f"({others}){spelling}{equals}[{_escaped(flag.what)}]{value}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:").replace("[", "\\[").replace("]", "\\]")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
