"""Servers of random models with tool templates, which tests can force to write a given answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from speculant_graph.config import DraftConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.engine import Request
from speculant_verifier.rules import teacher_forced
from support.harmony import harmony_tokenizer
from support.http_api import Api, serving, tiny_decoder
from support.tiny_models import tiny_gpt_oss

HARMONY = (
    "{% if tools %}<|start|>developer<|message|>tools {{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|start|>{{ message['role'] }}<|message|>{{ message['content'] }}"
    "{% for call in message.tool_calls %}{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
    "<|end|>{% endfor %}<|start|>assistant{# <|channel|> #}"
)
HERMES = (
    "{% if tools %}{{ tools | tojson }} answer with <tool_call>\n{% endif %}"
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% for call in message.tool_calls %}{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}assistant:"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop-it", "parameters": {"type": "object", "maxProperties": 0}}}
TOOLS = [WEATHER, STOP]
ARGUMENTS = '{"unit": "C", "days": 3}'
CONTEXT = 2_048
MESSAGES: Any = [{"role": "user", "content": "Rain?"}]
ANSWERS = {
    "harmony": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{ARGUMENTS}<|call|>"
    ),
    "hermes": f'See.<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
}


def longer(decoder: SpeculativeDecoder) -> SpeculativeDecoder:
    """Raise a byte-level decoder's context length, so that tool definitions fit; the model itself has no limit."""
    decoder.target.max_length = CONTEXT
    return decoder


@contextmanager
def serving_tools(kind: str) -> Iterator[tuple[str, Api]]:
    """Serve a model that writes tool calls in the style ``harmony``, ``harmony-bytes`` or ``hermes``."""
    name = kind.partition("-")[0]
    if name != "harmony":
        with (
            longer(tiny_decoder("llama", template=HERMES)) as decoder,
            serving(decoder, model_id="m") as running,
        ):
            yield name, running
        return
    tokenizer = harmony_tokenizer("bytes" if kind != name else "gpt-oss")
    if kind != name:
        tokenizer.chat_template = HARMONY
    target = tiny_gpt_oss(vocabulary_size=max(320, len(tokenizer)))
    target.max_length = CONTEXT
    target._tokenizer = tokenizer
    target.end_token_ids = frozenset(tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>"]))
    verifier = VerifierConfig(measure_costs=False, num_threads=1)
    with (
        SpeculativeDecoder(target=target, verifier_config=verifier, draft_config=DraftConfig(k=8)) as decoder,
        serving(decoder, model_id="m") as running,
    ):
        yield name, running


def writer_of(api: Api, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Return a function that makes the model write a given answer and returns the fields of a request for it."""

    def make(answer: str) -> dict[str, Any]:
        tokens = api.decoder.target.tokenizer.encode(answer, add_special_tokens=False)
        tokens += [] if answer.endswith("<|call|>") else [min(api.decoder.target.end_token_ids)]
        monkeypatch.setattr(
            "speculant_verifier.conversation.text.Request", partial(Request, wrap_target=teacher_forced(tokens))
        )
        return {"model": "m", "messages": MESSAGES, "max_tokens": len(tokens), "tools": TOOLS}

    return make
