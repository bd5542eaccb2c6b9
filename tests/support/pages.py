"""Reads pages of the documentation and their blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    """First word after the fence; empty if there is none."""
    file_name: str
    """Second word after the fence, the file in which a reader saves the block; empty if there is none."""
    body: str
    line: int
    """Line of its fence, from 1."""

    @property
    def first_line(self) -> str:
        """Its first line, without surrounding blanks."""
        return self.body.split("\n", 1)[0].strip()


def pages() -> list[str]:
    """Return the names of all pages for users, relative to the checkout."""
    alone = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"))
    found = [*alone, *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def read_page(name: str) -> str:
    """Return a page's text."""
    return (ROOT / name).read_text(encoding="utf-8")


def all_blocks(page: str) -> list[Block]:
    """Return all fenced blocks of a page's text, in order."""
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.splitlines(), start=1):
        if not line.lstrip().startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (line.strip().strip("`"), number), []
        else:
            language, file_name = [*opened[0].split(), "", ""][:2]
            found.append(Block(language, file_name, "\n".join(lines) + "\n", opened[1]))
            opened = None
    assert opened is None, f"the block of line {opened and opened[1]} has no end"
    return found


def without_blocks(page: str) -> str:
    """Return a page's text without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)


def code_spans(page: str) -> list[str]:
    """Return all text between backticks, outside blocks."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", without_blocks(page))]


def blocks(page: str, language: str = "") -> list[str]:
    """Return the texts of a language's blocks, in order."""
    return [block.body for block in all_blocks(page) if block.language == language]


def section(page: str, heading: str) -> str:
    """Return the section below a second-level heading."""
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
