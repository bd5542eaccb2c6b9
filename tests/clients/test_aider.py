"""aider applies an edit to a file of 80 lines with its defaults, which set no token limit."""

from __future__ import annotations

import json

import pytest

from support.client_programs import AIDER, Programs
from support.scripted_gpt_oss import CONTEXT, MODEL

pytestmark = pytest.mark.clients


def test_applies_an_edit(programs: Programs) -> None:
    lines = [f"def function_{number}() -> int:  # returns the number {number}" for number in range(40)]
    old = "".join(f"{line}\n    return {number}\n" for number, line in enumerate(lines))
    new = old.replace("return 39\n", "return 1_039\n")
    path = programs.work / "numbers.py"
    path.write_text(old, encoding="utf-8")
    metadata = {"max_input_tokens": CONTEXT, "max_output_tokens": CONTEXT, "litellm_provider": "openai", "mode": "chat"}
    about = programs.home / ".aider.model.metadata.json"  # without it aider asks GitHub for the context length
    about.write_text(json.dumps({f"openai/{MODEL}": metadata}), encoding="utf-8")
    command = [
        AIDER, "--model", f"openai/{MODEL}", "--openai-api-base", programs.url, "--openai-api-key", "none",
        "--yes-always", "--no-check-update", "--analytics-disable", "--no-show-release-notes", "--no-git",
        "--no-show-model-warnings", "--message", f"Change it. @@SAY:numbers.py\n```\n{new}```@@", path.name,
    ]  # fmt: skip
    programs.run(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    assert path.read_text(encoding="utf-8") == new
