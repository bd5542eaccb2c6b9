"""litellm: a loop with two tools over chats, whole and streamed, and a response. Arguments: URL, model."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it asks GitHub for prices
import litellm

URL, MODEL = sys.argv[1:]
litellm.telemetry = False
COMMON = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "none", "num_retries": 0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {"type": "object", "properties": {argument: {"type": kind}}, "required": [argument]},
        },
    }
    for name, argument, kind in (("get_weather", "place", "string"), ("to_kelvin", "celsius", "integer"))
]
QUESTION = 'How warm? @@CALL:get_weather {"place": "Rome"}@@ @@CALL:to_kelvin {"celsius": 17}@@ @@SAY:It is 290 K.@@'

for is_streamed in (False, True):
    messages = [{"role": "system", "content": "Use the tools."}, {"role": "user", "content": QUESTION}]
    called = []
    for _ in range(3):
        answer = litellm.completion(messages=messages, tools=TOOLS, stream=is_streamed, **COMMON)
        if is_streamed:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        for call in message.tool_calls or ():
            called.append([call.function.name, json.loads(call.function.arguments)])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny, 17 degrees, 290 kelvin"})
    print(json.dumps({"text": message.content, "called": called}))
response = litellm.responses(input="@@SAY:Hello.@@", **COMMON)
texts = [part.text for item in response.output if item.type == "message" for part in item.content]
print(json.dumps({"text": "".join(texts), "called": []}))
