"""Chats become token ids with the tokenizer's own template, and control tokens survive both conversions."""

from __future__ import annotations

import pytest

from speculant_graph.errors import GenerationError
from speculant_verifier.conversation.chat_format import ChatFormat
from support.tiny_models import BOS, EOS, byte_tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{% for message in messages %}<|startoftext|>{{ message['role'] }}: {{ message['content'] }}<|endoftext|>"
    "{% if message['role'] == 'fool' %}{{ raise_exception('no fools\nhere') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|startoftext|>{{ voice | default('assistant') }}:{% endif %}"
)


@pytest.fixture
def tokenizer():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_ids_are_those_of_the_template_with_control_tokens(tokenizer):
    token_ids = ChatFormat(tokenizer).render(HELLO)
    assert [token for token in token_ids if token >= 256] == tokenizer.convert_tokens_to_ids([BOS, EOS, BOS])
    assert tokenizer.decode(token_ids) == f"{BOS}user: Hello{EOS}{BOS}assistant:"
    assert (
        tokenizer.decode(ChatFormat(tokenizer).render(HELLO, add_generation_prompt=False)) == f"{BOS}user: Hello{EOS}"
    )
    assert tokenizer.decode(ChatFormat(tokenizer).render(HELLO, voice="x")).endswith(f"{BOS}x:")
    assert tokenizer.decode(ChatFormat(tokenizer).render(HELLO, chat_template="hi")) == "hi"
    assert all(type(token) is int for token in token_ids)


def test_without_a_template_it_says_what_to_do():
    with pytest.raises(GenerationError):
        ChatFormat(byte_tokenizer()).render(HELLO)


@pytest.mark.parametrize(("messages", "reason"), [
    ([], "must be a list"), ([*HELLO, {"content": "x"}], "must be a list"),
    ([{"role": "fool", "content": "x"}], "refuses the messages: no fools; change"),
])  # fmt: skip
def test_messages_of_a_wrong_shape_are_errors_of_one_line(tokenizer, messages, reason):
    # Promised behaviour: the message contains the template's own error.
    with pytest.raises(GenerationError, match=reason) as raised:
        ChatFormat(tokenizer).render(messages)
    assert "\n" not in str(raised.value)
