"""langchain-openai: a loop with two tools, whole and streamed, and a typed answer. Arguments: URL, model, API."""

import json
import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL, API = sys.argv[1:]
QUESTION = (
    'How warm? @@CALL:get_weather {"place": "Rome"}@@ @@CALL:to_kelvin {"celsius": 17}@@ @@SAY:It is 290 K in Rome.@@'
)
WRITTEN = json.dumps({"city": "Rome", "kelvin": 290})


class Report(BaseModel):
    """A report."""

    city: str
    kelvin: int


@tool
def get_weather(place: str) -> str:
    """Return the weather of a place."""
    return f"sunny in {place}, 17 degrees"


@tool
def to_kelvin(celsius: int) -> str:
    """Convert degrees."""
    return f"{celsius + 273} kelvin"


KNOWN = {each.name: each for each in (get_weather, to_kelvin)}
plain = ChatOpenAI(model=MODEL, base_url=URL, api_key="none", max_retries=0, use_responses_api=API == "responses")
model = plain.bind_tools(list(KNOWN.values()))
for is_streamed in (False, True):
    history = [HumanMessage(QUESTION)]
    outputs = []
    for _ in range(3):
        if is_streamed:
            answer = None
            for chunk in model.stream(history):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = model.invoke(history)
        history.append(answer)
        for call in answer.tool_calls:
            history.append(KNOWN[call["name"]].invoke(call))
            outputs.append(history[-1].content)
    print(json.dumps({"text": answer.text, "outputs": outputs}))
report = plain.with_structured_output(Report).invoke(f"As JSON. @@SAY:{WRITTEN}@@")
print(json.dumps(report.model_dump()))
