"""The table of clients in docs/http.md lists exactly the clients and versions that ``make test-clients`` runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.pages import read_page

_ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`([\w@/.-]+)` (\d[\w.]*)")


def pinned() -> set[tuple[str, str]]:
    """Return the installed packages with their versions."""
    package = json.loads((_ROOT / "tests/clients/package.json").read_text(encoding="utf-8"))
    found = set(package["dependencies"].items())
    for name in ("constraints-clients.txt", "constraints-aider.txt"):
        lines = (_ROOT / name).read_text(encoding="utf-8").splitlines()
        found |= {(each[0], each[2]) for each in (line.partition("==") for line in lines)}
    return found


def test_versions_are_those_that_are_run() -> None:
    section = read_page("docs/http.md").partition("\n## Clients\n")[2].partition("\n## ")[0]
    named = _NAMED.findall(section)
    assert len(named) >= 12
    assert set(named) <= pinned()


def test_every_client_has_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (_ROOT / "tests/clients").rglob("*.*"))
    section = read_page("docs/http.md").partition("\n## Clients\n")[2].partition("\n## ")[0]
    for name, _ in _NAMED.findall(section):
        word = {"@openai/codex": "codex", "opencode-ai": "opencode", "aider-chat": "AIDER",
                "@anthropic-ai/claude-code": "claude", "openai-agents": "agents",
                "langchain-openai": "langchain_openai"}.get(name, name)  # fmt: skip
        assert word in tests, name
