"""Tool calls do not depend on the cuts of an answer into deltas."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from transformers import PreTrainedTokenizerFast

from speculant_verifier.conversation.chat_format import ChatFormat
from speculant_verifier.conversation.text import Detokenizer
from support.answers import TOOL_NAMES, random_answer, said
from support.harmony import harmony_tokenizer
from support.tiny_models import byte_tokenizer
from support.tool_models import HERMES


def tokenizer_of(style: str) -> PreTrainedTokenizerFast:
    if style == "hermes":
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = HERMES
        return tokenizer
    return harmony_tokenizer("bytes" if style == "harmony-bytes" else "gpt-oss")


class Answers:
    """One model's format, and its answers cut into deltas."""

    def __init__(self, style: str) -> None:
        self.style = style.partition("-")[0]
        self.tokenizer = tokenizer_of(style)
        self.format = ChatFormat(self.tokenizer)

    def encoded(self, seed: int) -> list[int]:
        return self.tokenizer.encode(random_answer(self.style, random.Random(seed)), add_special_tokens=False)

    def parsed(self, tokens: list[int], cuts: list[int], *, is_cut: bool = False) -> tuple[object, bool]:
        """Return the parsed contents of an answer in deltas with these borders, and whether it ends in a call."""
        parser = self.format.parser(TOOL_NAMES)
        texts = Detokenizer(lambda ids: self.tokenizer.decode(list(ids), skip_special_tokens=False))
        ends = set(self.format.stop_token_ids)
        pieces = []
        borders = [0, *cuts, len(tokens)]
        for start, end in pairwise(borders):
            delta, is_last = tokens[start:end], end == len(tokens)
            shown = delta[:-1] if delta and delta[-1] in ends else delta
            pieces += parser.push(delta, texts.push(shown, final=is_last), final=is_last, is_cut=is_last and is_cut)
        return said(pieces), parser.ends_in_call

    def compare(self, seed: int) -> int:
        tokens = self.encoded(seed)
        expected = self.parsed(tokens, [])
        num_cuts = 0
        for cuts in every_kind_of_cut(len(tokens), random.Random(seed)):
            assert self.parsed(tokens, cuts) == expected, (seed, cuts, self.tokenizer.decode(tokens))
            num_cuts += 1
        return num_cuts


def every_kind_of_cut(size: int, draw: random.Random) -> Iterator[list[int]]:
    """Yield every position of a single cut, deltas of one to five tokens, and random cuts."""
    yield from ([at] for at in range(1, size))
    for width in range(1, 6):
        yield list(range(width, size, width))
    for _ in range(20):
        yield sorted(draw.sample(range(1, size), draw.randint(1, size - 1)))


def test_every_cut_of_half_an_answer_gives_the_same(answers):
    """A limit may end an answer anywhere."""
    for seed in range(4):
        tokens, draw = answers.encoded(seed), random.Random(seed)
        for size in draw.sample(range(2, len(tokens)), min(8, len(tokens) - 2)):
            half = tokens[:size]
            expected = answers.parsed(half, [], is_cut=True)
            for cuts in ([draw.randint(1, size - 1)], list(range(1, size))):
                assert answers.parsed(half, cuts, is_cut=True) == expected


STYLES = ["harmony", "harmony-bytes", "hermes"]


@pytest.fixture(scope="module", params=STYLES)
def answers(request: pytest.FixtureRequest) -> Answers:
    return Answers(request.param)


def test_every_cut_of_an_answer_gives_the_same_calls(answers):
    assert sum(answers.compare(seed) for seed in range(6)) > 100


@pytest.mark.slow
def test_every_cut_of_200_answers_gives_the_same_calls(answers):
    is_short = answers.style == "harmony" and len(answers.tokenizer) < 400  # one token per byte makes long answers slow
    for seed in range(30 if is_short else 200):
        answers.compare(seed)


def test_the_answers_are_of_all_kinds(answers):
    """Control: answers without calls, texts or multi-byte characters would prove little."""
    found = [answers.parsed(answers.encoded(seed), []) for seed in range(60)]
    assert sum(bool(calls) for (_, _, calls), _ in found) > 20
    assert sum(bool(content) for (_, content, _), _ in found) > 10
    assert any(not ends_in_call for _, ends_in_call in found)
    if answers.style == "harmony":
        assert any(arguments == "{}" for (_, _, calls), _ in found for _, arguments in calls)
        assert any(arguments == '{"a": ' for (_, _, calls), _ in found for _, arguments in calls)
    else:
        assert any(len(calls) > 1 for (_, _, calls), _ in found)


def test_arguments_are_streamed(answers):
    """Arguments arrive while the call is being written, not at its end."""
    calls = {
        "harmony": "<|channel|>commentary to=functions.f<|message|>",
        "hermes": '<tool_call>{"name": "f", "arguments": ',
    }
    parser = answers.format.parser(TOOL_NAMES)
    pieces = []
    for token in answers.tokenizer.encode(f'{calls[answers.style]}{{"text": "one two', add_special_tokens=False):
        pieces += parser.push([token], answers.tokenizer.decode([token]))
    assert said(pieces)[2] == [["f", '{"text": "one two']]
    assert not parser.ends_in_call
