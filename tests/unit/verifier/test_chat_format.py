"""The chat format of a model: its template, its end tokens, and the prompt prefix that sessions share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GenerationConfig

from speculant_graph.errors import ConfigError, GenerationError
from speculant_verifier.conversation.chat_format import ChatFormat
from speculant_verifier.model import TargetModel
from support.harmony import harmony_tokenizer
from support.tiny_models import byte_tokenizer, tiny_gpt_oss

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "Does it.", "parameters": {"type": "object"}}}
NAMED = {
    "default": "plain {{ messages[0].content }}",
    "tool_use": "{% if tools %}<tool_call> with {{ tools[0].function.name }}{% endif %}",
}


def in_a_list(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    config["chat_template"] = [{"name": name, "template": text} for name, text in NAMED.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def in_files(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(NAMED["default"], encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(NAMED["tool_use"], encoding="utf-8")


@pytest.mark.parametrize("write", [in_a_list, in_files])
def test_named_templates_are_used(tmp_path: Path, write: Any) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    write(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chats = ChatFormat(tokenizer)
    assert tokenizer.decode(chats.render(HELLO)) == "plain Hello"
    assert tokenizer.decode(chats.render(HELLO, [TOOL])) == "<tool_call> with f"
    assert chats.style is not None
    assert chats.style.name == "hermes"


def test_a_missing_default_is_one_line() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"tool_use": "x", "rag": "y"}
    with pytest.raises(ConfigError) as raised:
        ChatFormat(tokenizer)
    assert "rag, tool_use" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["bytes", "gpt-oss"])
def test_the_stops_of_harmony_always_apply(kind: str) -> None:
    tokenizer = harmony_tokenizer(kind)
    returned, called = tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>"])
    if kind == "gpt-oss":
        assert (returned, called) == (200002, 200012)
    model = tiny_gpt_oss().model
    for declared in ([], 3, [3], returned, [called]):
        model.generation_config = GenerationConfig(eos_token_id=declared)
        own = set(declared if isinstance(declared, list) else [declared])
        assert TargetModel(model, tokenizer, "tiny").end_token_ids == own | {returned, called}
    model.generation_config = None
    assert TargetModel(model, tokenizer, "tiny").end_token_ids == {returned, called, tokenizer.eos_token_id}


def test_other_models_end_where_they_declare_it() -> None:
    target = tiny_gpt_oss()
    assert TargetModel(target.model, byte_tokenizer(), "tiny").end_token_ids == {257}


def test_sessions_share_instructions_and_tools() -> None:
    chats = ChatFormat(harmony_tokenizer("bytes"))
    head = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}]
    prompts = [chats.render([*head, {"role": "user", "content": text}], [TOOL]) for text in ("Rain?", "12")]
    lengths = {
        chats.shared_length(prompt, [*head, {"role": "user", "content": text}], [TOOL])
        for prompt, text in zip(prompts, ("Rain?", "12"), strict=True)
    }
    [length] = lengths
    assert prompts[0][:length] == prompts[1][:length]
    assert prompts[0][length : length + 1] != prompts[1][length : length + 1]
    assert chats.shared_length(chats.render(HELLO), HELLO) == 0


ODD_SCHEMAS: list[tuple[Any, str]] = [
    ({"$ref": "#/$defs/Place", "$defs": {"Place": {"type": "string", "enum": ["a", "b"]}}}, '"a" | "b"'),
    ({"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"kids": {"items": {"$ref": "#/$defs/T"}}}}}}, "kids?: T[]"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
    ({"allOf": [{"type": "integer"}, {"const": 3}]}, "number & 3"),
    ({"enum": [1, None, "x"]}, '1 | null | "x"'),
    ({"type": ["object", "null"], "properties": {"deep": {"type": "boolean"}}}, "deep?: boolean"),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "[key: string]: number"),
    ({"prefixItems": [{"type": "string"}, {"type": "integer"}]}, "[string, number]"),
    ({"properties": {"inner": {}}}, "inner?: any"),
    (True, "=> any"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "told"), ODD_SCHEMAS)
def test_odd_schemas_are_told(schema: Any, told: str) -> None:
    tokenizer = harmony_tokenizer("bytes")
    parameters = {"type": "object", "properties": {"x": schema}}
    if isinstance(schema, dict):
        parameters["$defs"] = schema.get("$defs", {})
    prompt = tokenizer.decode(ChatFormat(tokenizer).render(HELLO, [
        {"type": "function", "function": {"name": "f", "parameters": parameters}}
    ]))  # fmt: skip
    assert told in prompt


def test_custom_tools_take_text() -> None:
    tokenizer = harmony_tokenizer("bytes")
    custom = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    prompt = tokenizer.decode(ChatFormat(tokenizer).render(messages, [custom]))
    assert "// Edits.\ntype patch = (_: string) => any;" in prompt
    assert "<|start|>assistant to=functions.patch<|channel|>commentary<|message|>*** Begin<|call|>" in prompt
    assert "<|start|>functions.patch to=assistant<|channel|>commentary<|message|>ok<|end|>" in prompt


@pytest.mark.parametrize("message", [
    {"role": "user", "content": 3}, {"role": "user", "content": [{"type": "image_url"}]},
    {"role": "user", "content": "\ud800"}, {"role": "fool", "content": "x"},
    {"role": "tool", "tool_call_id": "c", "content": "x"}, {"role": "assistant", "tool_calls": 3},
    {"role": "assistant", "tool_calls": [3]}, {"role": "assistant", "tool_calls": [{"id": "c"}]},
])  # fmt: skip
def test_messages_that_say_nothing_are_refused_in_one_line(message: Any) -> None:
    with pytest.raises(GenerationError) as raised:
        ChatFormat(harmony_tokenizer("bytes")).render([message])
    assert "\n" not in str(raised.value)
    assert ";" in str(raised.value)
