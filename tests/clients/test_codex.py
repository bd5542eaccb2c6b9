"""The Codex CLI runs commands that the model asked for, and ends with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.client_programs import NODE_PROGRAMS, Programs
from support.scripted_gpt_oss import MODEL

pytestmark = pytest.mark.clients

SETTINGS = """\
model = "{model}"
model_provider = "speculant"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.speculant]
name = "speculant"
base_url = "{url}"
wire_api = "responses"

[analytics]
enabled = false

[features]
apps = false
plugins = false
"""


def configure(programs: Programs, more: str = "") -> None:
    folder = programs.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(SETTINGS.format(model=MODEL, url=programs.url) + more, encoding="utf-8")


def ask(programs: Programs, *arguments: str) -> list[dict[str, Any]]:
    """Run a turn; return its events."""
    command = [NODE_PROGRAMS / "codex", "exec", "--json", "--skip-git-repo-check", *arguments]
    return [json.loads(line) for line in programs.run(command).splitlines() if line.startswith("{")]


def message_of(events: list[dict[str, Any]]) -> str:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return next(item["text"] for item in reversed(items) if item["type"] == "agent_message")


def call(command: str) -> str:
    arguments = json.dumps({"cmd": command})
    return f"@@CALL:exec_command {arguments}@@"


def test_runs_a_command_and_resumes(programs: Programs) -> None:
    configure(programs)
    events = ask(programs, f"Go. {call('echo one > one.txt')} @@SAY:The first is done.@@")
    assert message_of(events) == "The first is done."
    assert (programs.work / "one.txt").read_text(encoding="utf-8") == "one\n"
    events = ask(programs, "resume", "--last", f"Again. {call('echo two > two.txt')} @@SAY:The second, too.@@")
    assert message_of(events) == "The second, too."
    assert (programs.work / "two.txt").read_text(encoding="utf-8") == "two\n"
