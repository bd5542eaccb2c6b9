"""``speculant completion``: the scripts in the shells they are for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pexpect
import pytest

from speculant_graph.cli.completion import completions
from speculant_graph.cli.main import COMMANDS, main
from speculant_graph.cli.shells.flags import all_of

CASES = [
    ("speculant bui", {"build"}),
    ("speculant build --on-e", {"--on-error"}),
    ("speculant build --graph.on-err", {"--graph.on-error"}),
    ("speculant build --graph.on-error ", {"fail", "skip"}),
    ("speculant generate --strategy t", {"tree"}),
    ("speculant generate --color ", {"auto", "never", "always"}),
    ("speculant admin st", {"statistics"}),
    ("speculant bench rep", {"replay"}),
    ("speculant bench replay --strat", {"--strategy"}),
    ("speculant config sh", {"show"}),
    ("speculant config show --sec", {"--section"}),
    ("speculant completion z", {"zsh"}),
    ("speculant doctor --graph-path note", {"notes.txt"}),
    ("speculant build -o note", {"notes.txt"}),
    ("speculant build note", {"notes.txt"}),
    ("speculant generate --max-tokens ", set()),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all scripts and a file that can be completed."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    return folder


def script(folder: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    capsys.readouterr()
    assert main(["completion", shell]) == 0
    path = folder / f"completion.{shell}"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def bash(path: Path, line: str) -> set[str]:
    words = re.findall(r"[^\s=]+|=", line) + ([""] if line[-1] in " =" else [])
    quoted = " ".join(f"'{word}'" for word in words)
    code = f"source {path}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words) - 1}\n_speculant\n"
    code += "printf '%s\\n' \"${COMPREPLY[@]}\""
    shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=path.parent)
    assert shown.stderr == ""
    return set(shown.stdout.split())


@pytest.mark.parametrize(("line", "expected"), [*CASES, ("speculant build --on-error=sk", {"skip"})])
def test_bash(scripts: Path, capsys, line: str, expected: set[str]) -> None:
    assert bash(script(scripts, "bash", capsys), line) == expected


def test_bash_completes_every_command_and_flag(scripts: Path, capsys) -> None:
    path = script(scripts, "bash", capsys)
    assert set(COMMANDS) <= bash(path, "speculant ")
    for name, command in all_of(completions()):
        if name in ("generate", "admin", "bench replay", "doctor"):
            flags = {flag for each in command.flags for flag in each.names}
            assert flags == bash(path, f"speculant {name} -")
            assert "--json" in flags


def test_every_command_has_flags(scripts: Path) -> None:
    found = dict(all_of(completions()))
    assert {name for name, each in found.items() if not each.flags} == {"bench", "config"}
    assert {"--verifier.model-name", "--model", "--draft.k", "-k"} <= {
        flag for each in found["generate"].flags for flag in each.names
    }


def test_fish(scripts: Path, capsys) -> None:
    path = script(scripts, "fish", capsys)
    lines = [line for line, _ in CASES]
    code = f"source {path}\n" + "\n".join(f"complete -C '{line}'; echo ===" for line in lines)
    environment = os.environ | {"HOME": str(scripts), "XDG_CONFIG_HOME": str(scripts)}
    shown = subprocess.run(
        ["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True, cwd=scripts, env=environment
    )
    assert shown.stderr == ""
    for (line, expected), block in zip(CASES, shown.stdout.split("===\n")[:-1], strict=True):
        assert {each.split("\t")[0] for each in block.splitlines()} == expected, line


ZSH_LINES = [
    ("speculant bui", "speculant build "),
    ("speculant build --graph.on-err", "speculant build --graph.on-error="),
    ("speculant build --on-error sk", "speculant build --on-error skip "),
    ("speculant generate --strategy=tr", "speculant generate --strategy=tree "),
    ("speculant bench rep", "speculant bench replay "),
    ("speculant bench replay --trac", "speculant bench replay --traces="),
    ("speculant config sh", "speculant config show "),
    ("speculant admin stat", "speculant admin statistics "),
    ("speculant build -o note", "speculant build -o notes.txt "),
]


def test_zsh(scripts: Path, capsys) -> None:
    path = script(scripts, "zsh", capsys)
    environment = os.environ | {"ZDOTDIR": str(scripts), "HOME": str(scripts), "TERM": "dumb", "PS1": "", "PROMPT": ""}
    shell = pexpect.spawn("zsh", ["-f", "-i"], env=environment, encoding="utf-8", cwd=str(scripts), timeout=30)
    shell.setecho(False)
    shell.sendline(f"PS1=; PROMPT_EOL_MARK=; autoload -Uz compinit && compinit -u -d {scripts}/dump && source {path}")
    # What the line holds after Tab is printed by a widget instead of being run.
    shell.sendline("show() { print; print -r -- \"<$BUFFER>\"; zle kill-buffer }; zle -N show; bindkey '^X' show")
    shell.sendline("print ready-$((1+1))")
    shell.expect("ready-2")
    for line, expected in ZSH_LINES:
        shell.send(f"{line}\t")
        shell.send("\x18")
        shell.expect(r"<(speculant[^>]*)>")
        assert shell.match[1] == expected
    shell.sendline("exit")
    shell.close(force=True)
