"""The Agents SDK: tools, then a typed output. Arguments: URL, model, API."""

import asyncio
import json
import sys

import agents
from openai import AsyncOpenAI
from pydantic import BaseModel

URL, MODEL, API = sys.argv[1:]
WRITTEN = json.dumps({"city": "Rome", "kelvin": 290})
QUESTION = f'How warm? @@CALL:get_weather {{"place": "Rome"}}@@ @@CALL:to_kelvin {{"celsius": 17}}@@ @@SAY:{WRITTEN}@@'


class Report(BaseModel):
    city: str
    kelvin: int


@agents.function_tool
def get_weather(place: str) -> str:
    """Return the weather of a place."""
    return f"sunny in {place}, 17 degrees"


@agents.function_tool
def to_kelvin(celsius: int) -> str:
    """Convert degrees."""
    return f"{celsius + 273} kelvin"


async def main() -> None:
    agents.set_tracing_disabled(True)
    kinds = {"responses": agents.OpenAIResponsesModel, "chat": agents.OpenAIChatCompletionsModel}
    async with AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as client:
        agent = agents.Agent(
            name="weather",
            instructions="Use the tools.",
            tools=[get_weather, to_kelvin],
            output_type=Report,
            model=kinds[API](model=MODEL, openai_client=client),
        )
        whole = await agents.Runner.run(agent, QUESTION)
        running = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in running.stream_events():
            pass
        again = await agents.Runner.run(agent, [*whole.to_input_list(), {"role": "user", "content": QUESTION}])
    for result in (whole, running, again):
        outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
        print(json.dumps({"final": result.final_output.model_dump(), "outputs": outputs}))


asyncio.run(main())
