"""Drafts never change a tool call: answers decoded with good and bad drafts equal those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.engine import Request
from speculant_verifier.rules import teacher_forced
from support.answers import TOOL_NAMES, random_answer, said
from support.drafters import ScriptedDrafter, knowing
from support.harmony import harmony_tokenizer
from support.tiny_models import byte_tokenizer, tiny_gpt_oss, tiny_model
from support.tool_models import HERMES

ACCURACIES = [1.0, 0.7, 0.2]
CONTEXT = 2_048


class Writer:
    """A real engine whose model is forced to write given answers."""

    def __init__(self, style: str, patch: pytest.MonkeyPatch) -> None:
        self.style, self._patch = style, patch
        tokenizer = harmony_tokenizer("bytes") if style == "harmony" else byte_tokenizer()
        if style == "hermes":
            tokenizer.chat_template = HERMES
        target = tiny_gpt_oss(vocabulary_size=320) if style == "harmony" else tiny_model("llama")
        target.max_length, target._tokenizer = CONTEXT, tokenizer
        self._ends = tokenizer.convert_tokens_to_ids(
            ["<|return|>", "<|call|>"] if style == "harmony" else ["<|endoftext|>"]
        )
        target.end_token_ids = frozenset(self._ends)
        self.drafter = ScriptedDrafter(lambda step: None)  # replaced for every answer
        self.decoder = SpeculativeDecoder(
            target=target,
            verifier_config=VerifierConfig(measure_costs=False, num_threads=1),
            draft_config=DraftConfig(k=6),
            drafter=self.drafter,
        )
        self.tokenizer = tokenizer
        self.prompt = self.decoder.chat_prompt([{"role": "user", "content": "Rain?"}])

    def tokens(self, seed: int) -> list[int]:
        tokens = self.tokenizer.encode(random_answer(self.style, random.Random(seed)), add_special_tokens=False)
        return tokens if tokens[-1] in self._ends else [*tokens, self._ends[0]]

    def written(self, tokens: list[int], accuracy: float | None) -> tuple[object, bool, int]:
        """Return an answer's parsed contents, whether it ends in a call, and its number of steps."""
        if accuracy is not None:
            self.drafter.script = knowing([[*self.prompt, *tokens]], accuracy, 258)
        self._patch.setattr(
            "speculant_verifier.conversation.text.Request", partial(Request, wrap_target=teacher_forced(tokens))
        )
        config = GenerationConfig(max_tokens=len(tokens), speculation="off" if accuracy is None else "on")
        parser, pieces, num_steps = self.decoder.chat_format.parser(TOOL_NAMES), [], 0
        for event in self.decoder.stream([list(self.prompt)], config):
            pieces += parser.push(event.token_ids, event.text, final=event.result is not None)
            num_steps += 1
            if event.result is not None:
                assert list(event.result.token_ids) == tokens
        return said(pieces), parser.ends_in_call, num_steps

    def compare(self, seed: int, accuracies: Sequence[float] = ACCURACIES) -> bool:
        """Compare one answer; return whether drafts made its deltas longer."""
        tokens = self.tokens(seed)
        *expected, num_steps = self.written(tokens, None)
        counts = []
        for accuracy in accuracies:
            *found, count = self.written(tokens, accuracy)
            assert found == expected, (seed, accuracy, self.tokenizer.decode(tokens))
            counts.append(count)
        return min(counts) < num_steps


@pytest.fixture(scope="module", params=["harmony", "hermes"])
def writer(request: pytest.FixtureRequest) -> Iterator[Writer]:
    with pytest.MonkeyPatch.context() as patch:
        made = Writer(request.param, patch)
        with made.decoder:
            yield made


def test_drafts_never_change_a_tool_call(writer: Writer) -> None:
    for seed in range(2):
        assert writer.compare(seed), "drafts made no delta longer"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_drafts_change_none_of_200_answers(writer: Writer, part: int) -> None:
    for seed in range(part, 200, 8):
        writer.compare(seed, [ACCURACIES[seed % len(ACCURACIES)]])
