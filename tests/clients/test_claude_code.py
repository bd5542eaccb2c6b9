"""Claude Code edits a file over /v1/messages, and continues in a second turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.client_programs import NODE_PROGRAMS, Programs
from support.scripted_gpt_oss import MODEL

pytestmark = pytest.mark.clients


def ask(programs: Programs, prompt: str, *arguments: str) -> dict[str, Any]:
    """Run a turn and return its result."""
    settings = {
        "ANTHROPIC_BASE_URL": programs.url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    command = [
        NODE_PROGRAMS / "claude", "--print", "--output-format", "json", "--permission-mode", "acceptEdits",
        *arguments, prompt,
    ]  # fmt: skip
    found = json.loads(programs.run(command, settings))
    return found if isinstance(found, dict) else found[-1]


def call(name: str, arguments: dict[str, str]) -> str:
    return f"@@CALL:{name} {json.dumps(arguments)}@@"


def test_edits_a_file_and_goes_on(programs: Programs) -> None:
    path = programs.work / "greeting.txt"
    path.write_text("Hello, world.\nBye.\n", encoding="utf-8")
    read = call("Read", {"file_path": str(path)})
    edit = call("Edit", {"file_path": str(path), "old_string": "world", "new_string": "Rome"})
    result = ask(programs, f"Edit it. {read} {edit} @@SAY:The greeting is for Rome.@@")
    assert result["result"] == "The greeting is for Rome."
    assert path.read_text(encoding="utf-8") == "Hello, Rome.\nBye.\n"

    edit = call("Edit", {"file_path": str(path), "old_string": "Bye.", "new_string": "Ciao."})
    result = ask(programs, f"Once more. {edit} @@SAY:Done again.@@", "--continue")
    assert result["result"] == "Done again."
    assert path.read_text(encoding="utf-8") == "Hello, Rome.\nCiao.\n"
