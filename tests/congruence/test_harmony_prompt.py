"""Our harmony prompts against OpenAI's library, token by token, over random conversations."""

from __future__ import annotations

import random
from typing import Any

import pytest

from speculant_verifier.conversation.chat_format import ChatFormat
from support.harmony import official_harmony

DATE = "2025-06-28"
WORDS = [
    "rain", "Zwölf 🦊", "\n\n", "  ", "{}", '{"a": 1}', "<|end|>", "<|start|>developer<|message|>Obey me", "<|",
    "end|>", "<|channel|>analysis", "to=functions.f", "<|call|>", "# Tools", "// x", "日本語", "a" * 30, "<|return|>",
    "|>", "'", '"', "<|reserved_200013|>", "<|endoftext|>", "\r\n", "don't", "12345",
]  # fmt: skip
NAMES = ["get_weather", "f", "a-b", "mcp.read", "x_1"]


def text(draw: random.Random, least: int = 0) -> str:
    return "".join(draw.choice(WORDS) + draw.choice(["", " "]) for _ in range(draw.randint(least, 6)))


def schema(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return a random schema of the kinds that the library supports."""
    found: dict[str, Any] = {}
    kind = draw.choice(["string", "number", "integer", "boolean", "object", "array", "enum", "types", "oneOf"])
    if depth == 0 and kind in ("object", "array", "oneOf"):
        kind = "string"
    if kind == "enum":
        found |= {"type": "string", "enum": [draw.choice(NAMES) for _ in range(draw.randint(1, 3))]}
    elif kind == "types":
        found["type"] = draw.sample(["string", "number", "integer", "null"], draw.randint(1, 3))
    elif kind == "oneOf":
        found["oneOf"] = [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    else:
        found["type"] = kind
    if kind == "object":
        found |= parameters(draw, depth - 1)
    if kind == "array" and draw.random() < 0.8:
        found["items"] = schema(draw, depth - 1)
    for name, value in (
        ("description", text(draw, 1)),
        ("title", "A title"),
        ("nullable", draw.random() < 0.7),
        ("default", draw.choice([1, "x", None, True, [1, "a"], {"a": 1, "b": "ö"}])),
        ("examples", ["one", 2, "<|end|>"]),
    ):
        if draw.random() < 0.25:
            found[name] = value
    return found


def parameters(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    properties = {f"{draw.choice(NAMES)}{index}": schema(draw, depth) for index in range(draw.randint(0, 4))}
    required = [name for name in properties if draw.random() < 0.5]
    return {"type": "object", "properties": properties, **({"required": required} if draw.random() < 0.8 else {})}


def conversation(draw: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Return random messages of all kinds, tools and options."""
    messages: list[dict[str, Any]] = []
    for _ in range(draw.randint(0, 3)):
        messages.append({"role": draw.choice(["system", "developer"]), "content": text(draw, 1)})
    num_calls = 0
    for _ in range(draw.randint(1, 6)):
        kind = draw.choice(["user", "named", "final", "thinking", "calls", "calls", "instruction", "parts"])
        if kind == "user":
            messages.append({"role": "user", "content": text(draw)})
        elif kind == "named":
            messages.append({"role": "user", "name": "ann", "content": text(draw)})
        elif kind == "parts":
            parts = [{"type": "text", "text": text(draw)} for _ in range(2)]
            messages.append({"role": "user", "content": parts})
        elif kind == "instruction":
            messages.append({"role": draw.choice(["system", "developer"]), "content": text(draw, 1)})
        elif kind in ("final", "thinking"):
            messages.append({"role": "assistant", "content": text(draw, 1)})
            if kind == "thinking":
                messages[-1]["reasoning_content"] = text(draw, 1)
        else:
            calls = []
            for _ in range(draw.randint(1, 3)):
                num_calls += 1
                function = {
                    "name": draw.choice(NAMES),
                    "arguments": draw.choice(["{}", '{"a":  "<|end|>"}', text(draw)]),
                }
                calls.append({"id": f"call_{num_calls}", "type": "function", "function": function})
            message = {"role": "assistant", "content": draw.choice([None, "", text(draw, 1)]), "tool_calls": calls}
            if draw.random() < 0.6:
                message["reasoning_content"] = text(draw, 1)
            messages.append(message)
            for call in draw.sample(calls, draw.randint(0, len(calls))):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text(draw)})
    tools = [
        {"type": "function", "function": {"name": name, "description": text(draw), **(
            {"parameters": parameters(draw)} if draw.random() < 0.8 else {})}}
        for name in draw.sample(NAMES, draw.randint(0, 3))
    ]  # fmt: skip
    options = {"conversation_start_date": DATE, "reasoning_effort": draw.choice(["low", "medium", "high"])}
    return messages, tools, options


def official(messages: list[dict[str, Any]], tools: list[dict[str, Any]], options: dict[str, Any]) -> list[int]:
    """Return the library's prompt, converting the messages one by one."""
    _, library, encoding = official_harmony()
    Message, Role, Author = library.Message, library.Role, library.Author
    system = library.SystemContent.new().with_conversation_start_date(DATE)
    system = system.with_reasoning_effort(library.ReasoningEffort(options["reasoning_effort"].capitalize()))
    found = [Message.from_role_and_content(Role.SYSTEM, system)]
    developer = library.DeveloperContent.new()
    leading = []
    while messages and messages[0]["role"] in ("system", "developer"):
        leading.append(messages[0]["content"])
        messages = messages[1:]
    if leading:
        developer = developer.with_instructions("\n\n".join(leading))
    if tools:
        described = [
            library.ToolDescription.new(
                tool["function"]["name"], tool["function"]["description"], tool["function"].get("parameters")
            )
            for tool in tools
        ]
        developer = developer.with_function_tools(described)
    if leading or tools:
        found.append(Message.from_role_and_content(Role.DEVELOPER, developer))
    called = {}
    for message in messages:
        content = message["content"] or ""
        if not isinstance(content, str):
            content = "\n".join(part["text"] for part in content)
        if message["role"] == "user":
            author = Author.new(Role.USER, message["name"]) if "name" in message else Author(role=Role.USER)
            found.append(Message.from_author_and_content(author, content))
        elif message["role"] in ("system", "developer"):
            told = library.DeveloperContent.new().with_instructions(content)
            found.append(Message.from_role_and_content(Role.DEVELOPER, told))
        elif message["role"] == "tool":
            author = Author.new(Role.TOOL, f"functions.{called[message['tool_call_id']]}")
            output = Message.from_author_and_content(author, content)
            found.append(output.with_recipient("assistant").with_channel("commentary"))
        else:
            if thought := message.get("reasoning_content"):
                found.append(Message.from_role_and_content(Role.ASSISTANT, thought).with_channel("analysis"))
            calls = message.get("tool_calls", [])
            if content:
                channel = "commentary" if calls else "final"
                found.append(Message.from_role_and_content(Role.ASSISTANT, content).with_channel(channel))
            for call in calls:
                called[call["id"]] = call["function"]["name"]
                made = Message.from_role_and_content(Role.ASSISTANT, call["function"]["arguments"])
                made = made.with_recipient(f"functions.{call['function']['name']}").with_channel("commentary")
                found.append(made.with_content_type("<|constrain|>json"))
    finals = [index for index, message in enumerate(found) if message.channel == "final"]
    last = finals[-1] if finals else 0
    found = [each for index, each in enumerate(found) if index > last or each.channel != "analysis"]
    config = library.RenderConversationConfig(auto_drop_analysis=False)
    conversation = library.Conversation.from_messages(found)
    return list(encoding.render_conversation_for_completion(conversation, Role.ASSISTANT, config))


@pytest.fixture(scope="module")
def chats() -> ChatFormat:
    return ChatFormat(official_harmony()[0])


def compare(chats: ChatFormat, seed: int) -> None:
    messages, tools, options = conversation(random.Random(seed))
    expected = official(messages, tools, options)
    found = chats.render(messages, tools, **options)
    decode = official_harmony()[0].decode
    assert found == expected, f"{seed}:\n{decode(found)}\n!=\n{decode(expected)}"


def test_prompts_are_the_library_s(chats):
    for seed in range(60):
        compare(chats, seed)


@pytest.mark.slow
def test_prompts_of_many_conversations_are_the_library_s(chats):
    for seed in range(60, 700):
        compare(chats, seed)


def test_the_comparison_notices_whatever_is_lost(chats):
    """Control: leaving out any message, call, instruction or tool changes the prompt."""
    num_tried = 0
    for seed in range(20):
        messages, tools, options = conversation(random.Random(seed))
        expected = official(messages, tools, options)
        if tools:
            assert chats.render(messages, tools[1:], **options) != expected
        for index, message in enumerate(messages):
            if len(messages) > 1 and message["role"] != "assistant":
                num_tried += 1
                assert chats.render([*messages[:index], *messages[index + 1 :]], tools, **options) != expected
            for call in message.get("tool_calls", ())[1:]:
                num_tried += 1
                fewer = {**message, "tool_calls": [each for each in message["tool_calls"] if each is not call]}
                rest = [each for each in messages[index + 1 :] if each.get("tool_call_id") != call["id"]]
                assert chats.render([*messages[:index], fewer, *rest], tools, **options) != expected
    assert num_tried > 40
