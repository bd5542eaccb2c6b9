"""The script for bash, 3.2 or newer."""

from __future__ import annotations

from collections.abc import Sequence

from speculant_graph.cli.shells.flags import Completion, Flag, all_of

_HEAD = """\
# bash completion for speculant; made by: speculant completion bash
_speculant() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} path=${COMP_WORDS[1]}
    COMPREPLY=()
    # readline takes "=" for a word of its own
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" && $COMP_CWORD -gt 2 ]]; then
        previous=${COMP_WORDS[COMP_CWORD-2]}
    fi
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$current"))
        return
    fi
"""
_TAIL = """\
}
complete -F _speculant speculant
"""


def bash_script(commands: Sequence[Completion]) -> str:
    """Return the script."""
    names = " ".join([*(command.name for command in commands), "--help", "--version"])
    parts = [_HEAD.replace("@COMMANDS@", names)]
    groups = [command for command in commands if command.subcommands]
    for group in groups:
        inner = " ".join(each.name for each in group.subcommands)
        parts.append(
            f"    if [[ $path == {group.name} ]]; then\n"
            f"        if [[ $COMP_CWORD -eq 2 ]]; then\n"
            f'            COMPREPLY=($(compgen -W "{inner} --help" -- "$current"))\n'
            f"            return\n        fi\n"
            f'        path="$path ${{COMP_WORDS[2]}}"\n    fi\n'
        )
    parts.append('    local flags="" words="" value="" choices=""\n    case $path in\n')
    for name, each in all_of(commands):
        if not each.subcommands:
            parts.append(_case(name, each))
    parts.append("    *) return ;;\n    esac\n")
    parts.append(
        "    if [[ $value == file ]]; then\n        compopt -o filenames 2>/dev/null\n"
        '        COMPREPLY=($(compgen -f -- "$current"))\n'
        "    elif [[ $value == any ]]; then\n        return\n"
        '    elif [[ $value == choice ]]; then\n        COMPREPLY=($(compgen -W "$choices" -- "$current"))\n'
        '    elif [[ $current == -* ]]; then\n        COMPREPLY=($(compgen -W "$flags" -- "$current"))\n'
        '    elif [[ -n $words ]]; then\n        COMPREPLY=($(compgen -W "$words" -- "$current"))\n'
        '    else\n        compopt -o filenames 2>/dev/null\n        COMPREPLY=($(compgen -f -- "$current"))\n    fi\n'
    )
    return "".join([*parts, _TAIL])


def _case(name: str, command: Completion) -> str:
    flags = " ".join(flag for each in command.flags for flag in each.names)
    lines = [f'    "{name}")\n        flags="{flags}"\n']
    if command.words:
        lines.append(f'        words="{" ".join(command.words)}"\n')
    with_values = [flag for flag in command.flags if flag.takes_value]
    if with_values:
        lines.append("        case $previous in\n")
        lines += [_value(flag) for flag in with_values if flag.choices]
        for kind, chosen in (
            ("file", [flag for flag in with_values if flag.is_file]),
            ("any", [flag for flag in with_values if not flag.is_file and not flag.choices]),
        ):
            if chosen:
                pattern = "|".join(name for flag in chosen for name in flag.names)
                lines.append(f"        {pattern}) value={kind} ;;\n")
        lines.append("        esac\n")
    lines.append("        ;;\n")
    return "".join(lines)


def _value(flag: Flag) -> str:
    return f'        {"|".join(flag.names)}) value=choice choices="{" ".join(flag.choices)}" ;;\n'
