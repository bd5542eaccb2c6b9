"""Pages of the documentation, taken apart."""

from __future__ import annotations

import re


def blocks(page: str, language: str = "") -> list[str]:
    """Return the code blocks of a language, in order."""
    parts = re.split(r"^```(.*)\n", page, flags=re.MULTILINE)  # text, language, block, "", text, ...
    return [body for kind, body in zip(parts[1::4], parts[2::4], strict=True) if kind == language]


def section(page: str, heading: str) -> str:
    """Return what stands below a heading of the second level."""
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(table: str) -> list[list[str]]:
    """Return the cells of all rows of tables but their first lines."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return [row for row in cells if set(row[0]) - set("- ")][1:]
