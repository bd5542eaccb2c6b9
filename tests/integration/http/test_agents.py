"""Agent frameworks complete a loop with two tools, with a model that follows a script.

The engine computes all logits; only the choice of tokens follows the script.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from speculant_verifier.engine import Request
from speculant_verifier.rules import teacher_forced
from support.http_api import NO_AUTHORITIES, Api
from support.tool_models import serving_tools

pytestmark = pytest.mark.slow

CALLS = {"get_weather": {"place": "Rome"}, "to_kelvin": {"celsius": 17}}
RESULTS = {"get_weather": "sunny, 17 degrees", "to_kelvin": "290 kelvin"}
ANSWER = "It is sunny and 290 K in Rome."
QUESTION = "How warm is it in Rome, in kelvin?"


def get_weather(place: str) -> str:
    """Return the weather of a place."""
    assert place == "Rome"
    return RESULTS["get_weather"]


def to_kelvin(celsius: int) -> str:
    """Convert degrees."""
    assert celsius == 17
    return RESULTS["to_kelvin"]


def written(name: str, prompt: str) -> str:
    """Return the model's output for a prompt: the next call, or the answer if both calls have returned."""
    call = next((call for call in CALLS if RESULTS[call] not in prompt), None)
    if name == "hermes":
        if call is None:
            return ANSWER
        return f'<tool_call>\n{{"name": "{call}", "arguments": {json.dumps(CALLS[call])}}}\n</tool_call>'
    thought = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
    if call is None:
        return f"{thought}<|channel|>final<|message|>{ANSWER}<|return|>"
    header = f"<|channel|>commentary to=functions.{call} <|constrain|>json<|message|>"
    return f"{thought}{header}{json.dumps(CALLS[call])}<|call|>"


@pytest.fixture(params=["harmony", "hermes"])
def served_script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving_tools(request.param) as (name, api):
        target = api.decoder.target

        def scripted(index: int, prompt: tuple[int, ...], *arguments: Any, **options: Any) -> Request:
            text = written(name, target.tokenizer.decode(prompt))
            tokens = target.tokenizer.encode(text, add_special_tokens=False)
            tokens += [] if text.endswith("|>") else [min(target.end_token_ids)]
            return Request(index, prompt, *arguments, **options, wrap_target=teacher_forced(tokens))

        monkeypatch.setattr("speculant_verifier.conversation.text.Request", scripted)
        yield api


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_openai_agents(served_script: Api, kind: str, is_stream: bool) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    async def loop() -> Any:
        async with AsyncOpenAI(
            base_url=f"{served_script.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx2.AsyncClient(verify=NO_AUTHORITIES),
        ) as client:
            model_type = agents.OpenAIResponsesModel if kind == "responses" else agents.OpenAIChatCompletionsModel
            agent = agents.Agent(
                name="weather",
                instructions="Use the tools.",
                tools=[agents.function_tool(call) for call in (get_weather, to_kelvin)],
                model=model_type(model="m", openai_client=client),
                model_settings=agents.ModelSettings(max_tokens=300, include_usage=True),
            )
            if not is_stream:
                return await agents.Runner.run(agent, QUESTION)
            running = agents.Runner.run_streamed(agent, QUESTION)
            async for _ in running.stream_events():
                pass
            return running

    result = asyncio.run(loop())
    assert result.final_output == ANSWER
    cached = [response.usage.input_tokens_details.cached_tokens for response in result.raw_responses]
    assert len(cached) == 3
    assert all(cached[1:]), "what was sent before is not read again"


def test_langchain(served_script: Api) -> None:
    chat_models = pytest.importorskip("langchain_openai")
    messages = pytest.importorskip("langchain_core.messages")
    tools = pytest.importorskip("langchain_core.tools")

    known = {call.__name__: tools.tool(call) for call in (get_weather, to_kelvin)}
    model = chat_models.ChatOpenAI(
        model="m", base_url=f"{served_script.url}/v1", api_key="none", max_retries=0, max_tokens=300
    ).bind_tools(list(known.values()))
    history: list[Any] = [messages.HumanMessage(QUESTION)]
    for _ in range(3):
        answer = model.invoke(history)
        history.append(answer)
        history += [known[call["name"]].invoke(call) for call in answer.tool_calls]
    assert answer.content == ANSWER
    assert [message.content for message in history if isinstance(message, messages.ToolMessage)] == list(
        RESULTS.values()
    )
