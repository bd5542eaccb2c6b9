"""The picture of docs/terminal.md, of a real run: ``python -m support.terminal_picture``."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from speculant_graph.graph.builder import GraphBuilder
from speculant_verifier.demo.corpus import standard_library_files

DOCS = Path(__file__).parents[2] / "docs"
MODEL = Path(__file__).parents[2] / "verifier_client" / "speculant_verifier" / "demo" / "model"
COMMAND = ["speculant", "generate", "def loads(s, *, cls=None", "--graph-path", "stdlib.pkl", "--strategy", "tree"]
_COLUMNS = 100


def take_picture(path: Path) -> None:
    """Generate from the demo's model with a graph of the standard library, and draw what a terminal shows."""
    with tempfile.TemporaryDirectory() as temporary:
        builder = GraphBuilder(tokenizer_name=str(MODEL))
        builder.build(standard_library_files(), Path(temporary) / "stdlib.pkl")
        arguments = [*COMMAND[1:], "--model", str(MODEL), "--max-tokens", "90", "--speculation", "on"]
        program = [sys.executable, "-m", "speculant_graph.cli.main", *arguments, "--color", "always"]
        shown = subprocess.run(program, cwd=temporary, capture_output=True, text=True, check=True)
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    typed = " ".join(f'"{word}"' if " " in word else word for word in COMMAND)
    console.print(Text(f"$ {typed}", "bold"))
    console.print(Text.from_ansi(shown.stdout.rstrip("\n")))
    notes = [line for line in shown.stderr.splitlines() if " tokens, " in line or "accepted from" in line]
    console.print(Text.from_ansi(notes[-1]))
    drawn = console.export_svg(title="speculant generate")
    # The fonts of the reader's machine do as well as those that would be fetched from elsewhere.
    drawn = re.sub(r"<!--.*?-->\s*", "", drawn)
    path.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    take_picture(DOCS / "terminal.svg")
