"""The Codex CLI runs commands that the model requests, and ends with the model's message."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from support.client_programs import NODE_PROGRAMS, PYTHON, SCRIPTS, Programs
from support.scripted_gpt_oss import MODEL

pytestmark = pytest.mark.clients

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""A one-pixel picture."""
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

MCP_SERVER = """
[mcp_servers.weather]
command = "{python}"
args = ["{script}"]
required = true
startup_timeout_sec = 120
"""
"""An MCP server. Codex waits for it before the first request only if it is required."""


def configure(programs: Programs, more: str = "") -> None:
    folder = programs.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(SETTINGS.format(model=MODEL, url=programs.url) + more, encoding="utf-8")


def ask(programs: Programs, *arguments: str) -> list[dict[str, Any]]:
    """Run a turn and return its events."""
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


def test_calls_tools_of_a_namespace(programs: Programs) -> None:
    configure(programs, MCP_SERVER.format(python=PYTHON, script=SCRIPTS / "weather_server.py"))
    arguments = json.dumps({"place": "Rome"})
    events = ask(programs, f"How warm? @@CALL:mcp__weather__get_weather {arguments}@@ @@SAY:It is warm.@@")
    calls = [event["item"] for event in events if event.get("item", {}).get("type") == "mcp_tool_call"]
    assert (calls[-1]["server"], calls[-1]["tool"], calls[-1]["status"]) == ("weather", "get_weather", "completed")
    assert "sunny in Rome" in json.dumps(calls[-1]["result"])
    assert message_of(events) == "It is warm."


def test_goes_on_after_an_image(programs: Programs) -> None:
    configure(programs)
    (programs.work / "dot.png").write_bytes(DOT)
    view = f"@@CALL:view_image {json.dumps({'path': str(programs.work / 'dot.png')})}@@"
    assert message_of(ask(programs, f"Look. {view} @@SAY:I have looked.@@")) == "I have looked."
    events = ask(programs, "resume", "--last", f"And now? {call('echo on > on.txt')} @@SAY:It goes on.@@")
    assert message_of(events) == "It goes on."
    assert (programs.work / "on.txt").read_text(encoding="utf-8") == "on\n"
