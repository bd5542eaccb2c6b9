"""``speculant completion``: every shell's script contains all commands, and the bash script works."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from speculant_graph.cli.bench import BENCHES
from speculant_graph.cli.main import COMMANDS, main


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_script(shell: str, tmp_path: Path, capsys) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    assert {name for name in (*COMMANDS, *BENCHES) if name not in script.read_text(encoding="utf-8")} == set()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)
    if shell != "bash":
        return
    for line, expected in {
        "speculant bui": {"build"},
        "speculant build --graph.special-t": {"--graph.special-tokens"},
        "speculant build --special-tokens ": {"parse", "text"},
        "speculant config --sec": {"--section"},
        "speculant completion z": {"zsh"},
        "speculant bench replay --strat": {"--strategy"},
        "speculant build -o scri": {"script"},
        "speculant build scri": {"script"},
    }.items():
        words = [*line.split(), ""] if line.endswith(" ") else line.split()
        quoted = " ".join(f"'{word}'" for word in words)
        code = f"source ./script; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_speculant; "
        code += "printf '%s\\n' \"${COMPREPLY[@]}\""
        shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert (set(shown.stdout.split()), shown.stderr) == (expected, ""), line
