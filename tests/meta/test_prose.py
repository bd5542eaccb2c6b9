"""Rejects phrases that no native engineer would write."""

from __future__ import annotations

import re
import subprocess

import pytest

from support.pages import ROOT
from support.sentences import sentences

TURNS = {
    "goes on": "continues",
    "beside": "next to, with, besides, compared with",
    "behind": "after",
}
"""Forbidden phrase -> replacements."""
MEANT = re.compile(
    r"(left|leaves?|leave nothing) behind|behind (the scenes|a network|one name|one middleware|its last node|itself)"
    r"|(JSON|API) behind it|what is behind|says it goes on|@@SAY:It goes on|== \"It goes on"
)
"""Lines in which the phrase is right."""
NAME = re.compile(
    r"\b(beside|behind)\b *[=\[:.,})]|[({*] *(beside|behind)\b|(if|for|str\() ?(beside|behind)\b|\"beside"
)
"""Names of variables, which are exempt."""


@pytest.mark.parametrize("turn", TURNS)
def test_sentences_are_without(turn: str) -> None:
    command = ["git", "ls-files", "*.py", "*.md", "*.hpp", "*.cpp", "*.proto"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    names = listing.stdout.split()
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in names
        if name != "tests/meta/test_prose.py" and (ROOT / name).is_file()
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if re.search(rf"\b{turn}\b", line) and not MEANT.search(line) and not NAME.search(line)
    ]
    assert not found, f"instead of '{turn}' write: {TURNS[turn]}\n" + "\n".join(found)


NOUNS = r"^What (?!happens)\b|\b[Tt]hose (that|who)\b|\b[Ww]hat (is|are)\b(?!.*\?)"
"""Clauses in place of a noun."""


def test_things_have_names() -> None:
    try:
        read = [each for each in sentences() if each.place != "CHANGELOG.md"]
    except subprocess.CalledProcessError:
        pytest.skip("not a git checkout")
    found = [f"{each.place}: {each.text}" for each in read if re.search(NOUNS, each.text)]
    assert not found, "name the thing:\n" + "\n".join(found)
