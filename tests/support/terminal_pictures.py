"""Pictures of real runs in a terminal, for README.md and docs/terminal.md: ``make pictures``."""

from __future__ import annotations

import html
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.text import Text

from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.corpus import standard_library_files
from speculant_verifier.demo.run import MODEL_FOLDER

DOCS = Path(__file__).parents[2] / "docs"
GENERATE = (
    'speculant generate "def loads(s, *, cls=None" --model my-model --graph stdlib.pkl '
    "--max-tokens 90 --speculation on --color always"
)
DEMO = "speculant demo"
_COLUMNS = 100
_LAST = "prompt 6 of 6"


def take_generate_picture(path: Path) -> None:
    """Generate from the demo's model with a graph of the standard library, and draw what a terminal shows."""
    with tempfile.TemporaryDirectory() as temporary:
        builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER))
        builder.build(standard_library_files(), Path(temporary) / "stdlib.pkl")
        (Path(temporary) / "my-model").symlink_to(MODEL_FOLDER)
        text, notes = _run(GENERATE, temporary)
    [statistics] = [line for line in notes.splitlines() if " tokens/s" in line]
    _draw(path, GENERATE, [*text.rstrip("\n").split("\n"), statistics])


def take_demo_picture(path: Path) -> None:
    """Run the demo, and draw the beginning, its last prompt with drafts, and the table of all prompts."""
    with tempfile.TemporaryDirectory() as temporary:
        # What passes cost is measured now, as on a machine that runs the demo for the first time.
        text, _ = _run(DEMO, temporary, XDG_CACHE_HOME=temporary)
    _draw(path, DEMO, _shortened(text.rstrip("\n").split("\n")))


def read_picture(path: Path) -> list[str]:
    """Return the lines of text that a picture shows, without what is blank."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, piece in re.findall(r'<text[^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', path.read_text("utf-8")):
        lines.setdefault(float(y), []).append((float(x), html.unescape(piece)))
    return [" ".join(piece for _, piece in sorted(lines[y])).replace("\xa0", " ").strip() for y in sorted(lines)]


def _run(command: str, folder: str, **variables: str) -> tuple[str, str]:
    """Run a command as in a terminal; return what it wrote on standard output and standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS), **variables}
    program = [sys.executable, "-m", "speculant_graph.cli.main", *shlex.split(command)[1:]]
    shown = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return shown.stdout, shown.stderr


def _shortened(lines: list[str]) -> list[str]:
    plain = [Text.from_ansi(line).plain for line in lines]
    first = next(number for number, line in enumerate(plain) if line.startswith("prompt 1 of "))
    last = next(number for number, line in enumerate(plain) if line.startswith(_LAST))
    without = plain.index("[plain]", last)
    drafted = next(number for number in range(without, len(plain)) if plain[number].startswith("[speculative]"))
    return [*lines[:first], "…", *lines[last:without], *lines[drafted:]]


def _draw(path: Path, command: str, lines: list[str]) -> None:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", "bold"))
    for text in AnsiDecoder().decode("\n".join(lines)):  # one for all lines: colours go over line ends
        console.print(text)
    console.print()  # or the last line is cut below
    drawn = console.export_svg(title=" ".join(command.split()[:2]), unique_id=path.stem)
    # The fonts of the reader's machine do as well as those that would be fetched from elsewhere.
    drawn = re.sub(r"<!--.*?-->\s*", "", drawn)
    path.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    take_demo_picture(folder / "demo.svg")
    take_generate_picture(folder / "terminal.svg")
