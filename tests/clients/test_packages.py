"""Packages for writing agents: loops with two tools, and typed answers, over every API that they support."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.client_programs import Programs
from support.scripted_gpt_oss import MODEL

pytestmark = pytest.mark.clients

REPORT = {"city": "Rome", "kelvin": 290}
OUTPUTS = ["sunny in Rome, 17 degrees", "290 kelvin"]
CALLED = [["get_weather", {"place": "Rome"}], ["to_kelvin", {"celsius": 17}]]


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("provider", ["responses", "chat", "compatible"])
def test_the_ai_sdk(programs: Programs, provider: str) -> None:
    [found] = lines(programs.script("ai_sdk.mjs", MODEL, provider))
    assert found == {
        "whole": "It is 290 K.",
        "wholeSteps": 3,
        "results": ["sunny in Rome, 17 degrees", {"kelvin": 290}],
        "streamed": "It is 290 K.",
        "streamedSteps": 3,
        "output": {**REPORT, "notes": {"sky": "clear"}},
    }


def test_openai_with_zod(programs: Programs) -> None:
    [found] = lines(programs.script("openai_zod.mjs", MODEL))
    assert found["chat"] == found["response"] == found["expected"]
    assert found["called"] == {"place": "Rome"}


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_the_agents_sdk(programs: Programs, api: str) -> None:
    found = lines(programs.script("agents_sdk.py", MODEL, api))
    assert found == [{"final": REPORT, "outputs": OUTPUTS}] * 3


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_langchain(programs: Programs, api: str) -> None:
    *loops, report = lines(programs.script("langchain_loop.py", MODEL, api))
    assert loops == [{"text": "It is 290 K in Rome.", "outputs": OUTPUTS}] * 2
    assert report == REPORT


def test_litellm(programs: Programs) -> None:
    *loops, response = lines(programs.script("litellm_loop.py", MODEL))
    assert loops == [{"text": "It is 290 K.", "called": CALLED}] * 2
    assert response["text"] == "Hello."


def test_anthropic(programs: Programs) -> None:
    *loops, counts = lines(programs.script("anthropic_loop.py", MODEL))
    reasons = ["tool_use", "tool_use", "end_turn"]
    expected = {"text": "It is 290 K.", "called": CALLED, "reasons": reasons, "thoughts": ["Let me see."] * 3}
    assert loops == [expected] * 2
    assert counts["counted"] == counts["read"]
    assert counts["kind"] == "not_found_error"
