"""Channels of harmony responses, with a small tokenizer and, where available, with the released one."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from speculant_graph.types import TokenId
from speculant_verifier.conversation.harmony import ChannelSplitter
from speculant_verifier.conversation.harmony_tokens import HarmonyTokens
from speculant_verifier.conversation.text import Detokenizer
from support.harmony import HARMONY_NAMES, HARMONY_TEMPLATE, harmony_tokenizer
from support.http_api import tiny_decoder


class Split:
    """Splits responses, given as text, with a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        ids = tokenizer.convert_tokens_to_ids(HARMONY_NAMES)
        self.tokens = HarmonyTokens(dict(zip(ids, HARMONY_NAMES, strict=True)))

    def decode(self, token_ids: Any) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def encode(self, text: str) -> list[TokenId]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def whole(self, text: str, stop: tuple[str, ...] = ()) -> tuple[str, str]:
        return self.pieces(self.encode(text), [], stop)

    def pieces(self, token_ids: list[TokenId], cuts: list[int], stop: tuple[str, ...] = ()) -> tuple[str, str]:
        """Split a response that arrives in steps, which end at the cuts."""
        stream, splitter = Detokenizer(self.decode, stop), ChannelSplitter(self.tokens, self.decode)
        found = []
        edges = [0, *sorted(cuts), len(token_ids)]
        for number, (start, end) in enumerate(pairwise(edges), 2):
            tokens, is_last = token_ids[start:end], number == len(edges)
            found += splitter.push(tokens, stream.push(tokens, final=is_last), final=is_last)
        assert {kind for kind, _ in found} <= {"reasoning", "content"}
        return "".join(text for kind, text in found if kind == "reasoning"), "".join(
            text for kind, text in found if kind == "content"
        )


@pytest.fixture(scope="module", params=["bytes", "gpt-oss"])
def split(request: pytest.FixtureRequest) -> Split:
    return Split(harmony_tokenizer(request.param))


ANSWER = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Zwölf 🦊!<|return|>"


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (ANSWER, "Think.", "Zwölf 🦊!"),
        (ANSWER.removesuffix("<|return|>"), "Think.", "Zwölf 🦊!"),
        ("<|channel|>final<|message|>Yes", "", "Yes"),
        ("<|channel|>commentary<|message|>I look.<|end|>", "", "I look."),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", "", "{}"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b", "ab", ""),
        ("<|channel|>commentary to=functions.f<|message|>{}<|call|>", "{}", ""),
        (" to=functions.f<|channel|>commentary<|message|>{}<|call|>", "{}", ""),
        # cut off by max_tokens within a header, which has no text
        ("<|channel|>analysis<|message|>a<|end|><|start|>assis", "a", ""),
        # text that is not harmony is content, unchanged
        ("Just text.", "", "Just text."),
        ("<|channel|>analysis<|message|>a<|end|>stray", "a", "stray"),
        ("x " * 100 + "<|message|>y<|end|>z", "", "x " * 100 + "<|message|>y<|end|>z"),
        # the end token of a message may be missing
        ("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>", "a", "b"),
        # a control token that is not allowed within a message
        ("<|channel|>final<|message|>a<|channel|>b<|return|>", "", "ab"),
    ],
)
def test_channels(split: Split, text: str, reasoning: str, content: str) -> None:
    assert split.whole(text) == (reasoning, content)


def test_text_that_spells_control_tokens_is_text(split: Split) -> None:
    start = split.encode("<|channel|>final<|message|>")
    spelt = [token for character in "<|end|>" for token in split.encode(character)]
    assert split.pieces([*start, *spelt, *split.encode("x")], []) == ("", "<|end|>x")


@pytest.mark.parametrize("seed", range(8))
def test_how_an_answer_is_cut_makes_no_difference(split: Split, seed: int) -> None:
    generator = random.Random(seed)
    parts = [*HARMONY_NAMES, "analysis", "final", "assistant", "ö", "🦊", " ", "text. ", "<|en"]
    token_ids = [token for _ in range(60) for token in split.encode(generator.choice(parts))]
    broken = split.encode("🦊")[:1]
    token_ids[10:10] = broken
    token_ids[30:30] = broken
    for stop in ((), ("xt", "<|e"), ("final",)):
        expected = split.pieces(token_ids, [], stop)
        for _ in range(6):
            cuts = generator.sample(range(1, len(token_ids)), generator.randrange(len(token_ids) - 1))
            assert split.pieces(token_ids, cuts, stop) == expected
        assert split.pieces(token_ids, list(range(1, len(token_ids))), stop) == expected


BYTES = Split(harmony_tokenizer("bytes"))


@given(st.lists(st.sampled_from([*BYTES.tokens.names, *range(0, 256, 7)]), max_size=80))
def test_no_text_of_messages_is_lost(token_ids: list[int]) -> None:
    """Only control tokens and headers are neither reasoning nor content."""
    reasoning, content = BYTES.pieces(token_ids, list(range(1, len(token_ids))))
    raw = BYTES.decode(token_ids)
    if "<|message|>" not in [BYTES.tokens.names.get(token) for token in token_ids]:
        assert (reasoning, content) == ("", raw)
    assert len(reasoning) + len(content) <= len(raw)


@pytest.mark.parametrize("template", [HARMONY_TEMPLATE + "<|message|>", "{{ raise_exception('no') }}"])
def test_other_templates_are_not_harmony_s(template: str | None) -> None:
    with tiny_decoder("llama") as decoder:
        decoder.target._tokenizer = harmony_tokenizer("bytes")
        decoder.target.tokenizer.chat_template = template
        assert decoder.chat_format.harmony is None
