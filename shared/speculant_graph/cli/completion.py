"""``speculant completion``: a script that completes commands, flags and values in a shell.

The script is made once, from the settings classes, and starts no Python while it completes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

from pydantic_settings import CliPositionalArg

from speculant_graph.cli.shells.bash import bash_script
from speculant_graph.cli.shells.fish import fish_script
from speculant_graph.cli.shells.flags import Completion, completion_of
from speculant_graph.cli.shells.zsh import zsh_script
from speculant_graph.settings import CommandSettings, load_settings

_SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


class CompletionSettings(CommandSettings):
    """Print a script for a shell. bash: source <(speculant completion bash), in ~/.bashrc.

    zsh: speculant completion zsh > a file named _speculant in a folder of $fpath.
    fish: speculant completion fish > ~/.config/fish/completions/speculant.fish
    """

    shell: CliPositionalArg[Literal["bash", "zsh", "fish"]]
    """Which shell."""


def run(arguments: Sequence[str]) -> int:
    """Print the script."""
    settings = load_settings(CompletionSettings, "completion", arguments)
    sys.stdout.write(_SCRIPTS[settings.shell](completions()))
    return 0


def completions() -> list[Completion]:
    """Return what completes each command; those of extras that are not installed have no flags."""
    from speculant_graph.cli.bench import BENCHES
    from speculant_graph.cli.main import COMMANDS

    found = []
    for name, (module, _, what) in COMMANDS.items():
        if name == "bench":
            subcommands = [_completion(bench, module, what) for bench, (module, what) in BENCHES.items()]
            found.append(Completion(name, what, (), (), tuple(subcommands)))
        elif name == "config":
            show = _completion("show", module, "show all settings and where each comes from")
            found.append(Completion(name, what, (), (), (show,)))
        else:
            found.append(_completion(name, module, what))
    return found


def _completion(name: str, module: str, what: str) -> Completion:
    try:
        members = vars(importlib.import_module(module))
        if find_spec(f"{module}_settings"):  # kept apart, as a usual call needs none
            members = vars(importlib.import_module(f"{module}_settings"))
    except ImportError:
        return Completion(name, what, (), (), ())
    own = [
        value
        for word, value in members.items()
        if isinstance(value, type)
        and issubclass(value, CommandSettings)
        and value is not CommandSettings
        and word.endswith("Settings")
        and word != "AllSettings"
    ]
    return completion_of(name, what, own[0]) if own else Completion(name, what, (), (), ())
