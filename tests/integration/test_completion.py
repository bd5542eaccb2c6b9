"""``speculant completion``: what the script for bash completes, and that every shell has one of all commands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from speculant_graph.cli.bench import BENCHES
from speculant_graph.cli.main import COMMANDS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_every_command_is_in_the_script_of_every_shell(shell: str, tmp_path: Path, capsys) -> None:
    text = script(shell, capsys)
    assert {name for name in (*COMMANDS, *BENCHES) if name not in text} == set()
    path = tmp_path / "script"
    path.write_text(text, encoding="utf-8")
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)


def test_bash(tmp_path: Path, capsys) -> None:
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    (tmp_path / "script").write_text(script("bash", capsys), encoding="utf-8")
    for line, expected in {
        "speculant bui": {"build"},
        "speculant build --on-e": {"--on-error"},
        "speculant build --graph.on-err": {"--graph.on-error"},
        "speculant build --graph.on-error ": {"fail", "skip"},
        "speculant generate --strategy t": {"tree"},
        "speculant admin st": {"statistics"},
        "speculant bench rep": {"replay"},
        "speculant bench replay --strat": {"--strategy"},
        "speculant config --sec": {"--section"},
        "speculant completion z": {"zsh"},
        "speculant build -o note": {"notes.txt"},
        "speculant build note": {"notes.txt"},
    }.items():
        words = [*line.split(), ""] if line.endswith(" ") else line.split()
        quoted = " ".join(f"'{word}'" for word in words)
        code = f"source ./script\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words) - 1}\n"
        code += "_shtab_speculant\nprintf '%s\\n' \"${COMPREPLY[@]}\""
        shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert (set(shown.stdout.split()), shown.stderr) == (expected, ""), line
