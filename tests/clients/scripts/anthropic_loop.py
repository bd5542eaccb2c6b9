"""The anthropic package: a loop with two tools, whole and streamed, thinking, token counts. Arguments: URL, model."""

import json
import sys

import anthropic

URL, MODEL = sys.argv[1:]
client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key="none", max_retries=0)
TOOLS = [
    {
        "name": name,
        "description": name,
        "input_schema": {"type": "object", "properties": {argument: {"type": kind}}, "required": [argument]},
    }
    for name, argument, kind in (("get_weather", "place", "string"), ("to_kelvin", "celsius", "integer"))
]
QUESTION = 'How warm? @@CALL:get_weather {"place": "Rome"}@@ @@CALL:to_kelvin {"celsius": 17}@@ @@SAY:It is 290 K.@@'
COMMON = {"model": MODEL, "system": [{"type": "text", "text": "Use the tools."}], "tools": TOOLS}

for is_streamed in (False, True):
    messages = [{"role": "user", "content": QUESTION}]
    called, reasons, thoughts = [], [], []
    for _ in range(3):
        options = {**COMMON, "max_tokens": 2000, "messages": messages}
        options["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if is_streamed:
            with client.messages.stream(**options) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**options)
        reasons.append(answer.stop_reason)
        thoughts += [block.thinking for block in answer.content if block.type == "thinking"]
        messages.append({"role": "assistant", "content": answer.content})
        results = []
        for block in answer.content:
            if block.type == "tool_use":
                called.append([block.name, block.input])
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": "17 degrees, 290 kelvin"})
        if results:
            messages.append({"role": "user", "content": results})
    text = "".join(block.text for block in answer.content if block.type == "text")
    print(json.dumps({"text": text, "called": called, "reasons": reasons, "thoughts": thoughts}))
counted = client.messages.count_tokens(messages=messages[:1], **COMMON).input_tokens
answer = client.messages.create(messages=messages[:1], max_tokens=1, **COMMON)
usage = answer.usage
try:
    client.messages.create(model="other", max_tokens=1, messages=messages[:1])
except anthropic.NotFoundError as error:
    kind = error.body["error"]["type"]
print(json.dumps({"counted": counted, "read": usage.input_tokens + usage.cache_read_input_tokens, "kind": kind}))
