"""opencode edits a file with its own tools."""

from __future__ import annotations

import json

import pytest

from support.client_programs import NODE_PROGRAMS, Programs
from support.scripted_gpt_oss import CONTEXT, MODEL

pytestmark = pytest.mark.clients

SWITCHES = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "npm_config_offline": "true",  # otherwise it installs its own package for plugins
}


def configure(programs: Programs) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "speculant",
        "options": {"baseURL": programs.url, "apiKey": "none"},
        "models": {MODEL: {"name": MODEL, "limit": {"context": CONTEXT, "output": 8_192}}},
    }
    settings = {"provider": {"speculant": provider}, "model": f"speculant/{MODEL}", "autoupdate": False}
    (programs.work / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")


def call(name: str, arguments: dict[str, str]) -> str:
    return f"@@CALL:{name} {json.dumps(arguments)}@@"


def test_edits_a_file(programs: Programs) -> None:
    configure(programs)
    path = programs.work / "greeting.txt"
    path.write_text("Hello, world.\nBye.\n", encoding="utf-8")
    read = call("read", {"filePath": str(path)})
    edit = call("edit", {"filePath": str(path), "oldString": "world", "newString": "Rome"})
    command = [NODE_PROGRAMS / "opencode", "run"]
    prompt = f"Edit it. {read} {edit} @@SAY:The greeting is for Rome.@@"
    assert "The greeting is for Rome." in programs.run(command, SWITCHES, prompt)
    assert path.read_text(encoding="utf-8") == "Hello, Rome.\nBye.\n"

    edit = call("edit", {"filePath": str(path), "oldString": "Bye.", "newString": "Ciao."})
    prompt = f"Once more. {edit} @@SAY:Done again.@@"
    assert "Done again." in programs.run([*command, "--continue"], SWITCHES, prompt)
    assert path.read_text(encoding="utf-8") == "Hello, Rome.\nCiao.\n"
