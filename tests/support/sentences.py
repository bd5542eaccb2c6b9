"""Sentences that users read: in pages, and in docstrings, which are also the texts of help and settings.

``python -m support.sentences 40 7`` in ``tests/`` prints 40 random sentences, with seed 7. Noun phrases and
introductions of lists are not among them.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from support.pages import ROOT

_CODE = re.compile(r"```.*?```|<!--.*?-->|^ {4}.*?$", re.DOTALL | re.MULTILINE)
_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[])")
_SECTION = re.compile(r"^ *(?:Args|Returns|Raises|Attributes|Yields):$", re.MULTILINE)
_ENTRY = re.compile(r"^ +\*{0,2}[\w.]+: ", re.MULTILINE)
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )")
_ITEM = re.compile(r"\s*(?:(?:-|\d+\.) )?")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and its place."""

    place: str
    """The file."""
    text: str
    """The sentence on one line."""


def sentences() -> Iterator[Sentence]:
    """Yield all sentences of at least four words, and descriptions of arguments, which may be noun phrases."""
    command = ["git", "ls-files", "shared/*.py", "drafter_server/*.py", "verifier_client/*.py", "*.md"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        if not (ROOT / name).is_file() or "/generated/" in name:
            continue
        content = (ROOT / name).read_text(encoding="utf-8")
        for text in _docstrings(content) if name.endswith(".py") else _paragraphs(content):
            for sentence in _END.split(" ".join(text.split())):
                if len(sentence.split()) > 3:
                    yield Sentence(name, sentence)


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text, *sections = _SECTION.split(node.value.value)
            yield from (_ITEM.sub("", block, count=1) for block in _BLOCK.split(text))
            for section in sections:
                yield from _ENTRY.split(section)


def _paragraphs(page: str) -> Iterator[str]:
    for paragraph in _BLOCK.split(_CODE.sub("", page)):
        if not paragraph.lstrip().startswith(("|", "#", "!")):
            yield _ITEM.sub("", paragraph, count=1)


if __name__ == "__main__":
    count, seed = map(int, sys.argv[1:])
    whole = [each for each in sentences() if not each.text[0].islower() and not each.text.endswith(":")]
    for each in random.Random(seed).sample(whole, count):
        sys.stdout.write(f"{each.place}: {each.text}\n")
