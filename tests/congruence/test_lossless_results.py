"""Results apart from tokens: log-probabilities, samples, and ends of texts inside accepted drafts."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from support.drafters import ScriptedDrafter, knowing, knowing_tree
from support.lossless import WINDOW, Job, alone
from support.tiny_models import tiny_gpt_oss

PROMPT = tuple(index * 7 % 250 for index in range(124))
LONG = GenerationConfig(max_tokens=40, ignore_end_tokens=True, speculation="on")


@cache
def target():
    return tiny_gpt_oss(window=WINDOW)


@cache
def plain(temperature=0.0, seed=0):
    return alone(target(), Job(PROMPT, LONG.model_copy(update={"temperature": temperature, "seed": seed})))


def generate(config, script, k=9, prompts=1, **settings):
    with SpeculativeDecoder(
        verifier_config=VerifierConfig(measure_costs=False, **settings),
        draft_config=DraftConfig(k=k),
        drafter=ScriptedDrafter(script),
        target=target(),
    ) as decoder:
        events = list(decoder.stream([list(PROMPT)] * prompts, config))
    results = [event.result for event in events if event.result is not None]
    for result in results:
        assert result.finish_reason != "error", result.error
        own = [event for event in events if event.sample == result.sample]
        if prompts == 1:
            assert "".join(event.text for event in own) == result.text
            assert sum((event.token_ids for event in own), ()) == result.token_ids
    return sorted(results, key=lambda result: result.sample)


@pytest.mark.parametrize("recalled", [0, 20_000_000], ids=["passes", "target cache"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_logprobs_are_those_of_a_fresh_pass(temperature, recalled):
    """Holds at every position: for accepted draft tokens, the model's own tokens, and tokens without a pass."""
    output = plain(temperature)
    config = LONG.model_copy(
        update={"temperature": temperature, "logprobs": 3, "repetition_penalty": 1.0, "logit_bias": {4: 0.0}}
    )
    script = knowing_tree([[*PROMPT, *output]], 258)
    results = generate(config, script, prompts=2, max_batch_size=1, target_cache=recalled)
    with torch.inference_mode():
        logits = target().model(torch.tensor([[*PROMPT, *output]]), use_cache=False).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.double().log_softmax(-1)
    for result in results:
        assert result.token_ids == output
        assert result.num_accepted > 5 or result.num_from_target_cache == len(output)
        assert len(result.logprobs) == len(output)
        for row, token, found in zip(expected, output, result.logprobs, strict=True):
            assert found.token_id == token
            assert found.logprob == pytest.approx(float(row[token]), abs=2e-3)
            best = row.topk(3)
            assert found.top_logprobs == pytest.approx(best.values.tolist(), abs=2e-3)
            assert found.top_token_ids == tuple(best.indices.tolist())


def test_samples_use_the_seeds_after_the_first():
    outputs = [plain(0.9, seed) for seed in range(21, 24)]
    script = knowing([[*PROMPT, *output] for output in outputs], 0.9, 258)
    results = generate(LONG.model_copy(update={"temperature": 0.9, "seed": 21, "n": 3}), script)
    assert [result.token_ids for result in results] == outputs
    assert len(set(outputs)) == 3
    last = 2**63 - 1
    wrapped = generate(LONG.model_copy(update={"temperature": 0.9, "seed": last, "n": 2}), script)
    assert [result.token_ids for result in wrapped] == [plain(0.9, last), plain(0.9, 0)]


def text_of(token_ids):
    return target().decode(token_ids)


def shortest_text_with(output, stop):
    """Return the number of tokens that complete a stop text, and the text before it; decodes all tokens each time."""
    for count in range(1, len(output) + 1):
        text = text_of(output[:count])
        if stop in text:
            return count, text[: text.index(stop)]
    return len(output), text_of(output)


@pytest.mark.parametrize("accuracy", [1.0, 0.6, 0.0])
def test_stop_texts_across_steps_and_inside_accepted_drafts(accuracy):
    readable = {"temperature": 1.5, "logit_bias": dict.fromkeys(range(90), 12.0), "seed": 4, "logprobs": 0}
    config = LONG.model_copy(update=readable)
    output = alone(target(), Job(PROMPT, config))
    text = text_of(output)
    assert len(text) == len(output), "a character is a token, or the model wrote something else than expected"
    # Texts of one, two and five characters from anywhere in the output, so some cross the ends of steps.
    for position in range(0, len(text) - 5, 9):
        for length in (1, 2, 5):
            stop = text[position : position + length]
            count, before = shortest_text_with(output, stop)
            script = knowing([[*PROMPT, *output]], accuracy, 258, position)
            [result] = generate(config.model_copy(update={"stop": ("never there", stop)}), script, k=7)
            assert result.token_ids == output[:count]
            assert result.text == before
            assert result.finish_reason == "stop"
            assert len(result.logprobs) == count
            assert result.num_accepted <= count


@pytest.mark.parametrize("min_tokens", [0, 9])
@pytest.mark.parametrize("accuracy", [1.0, 0.5])
def test_several_end_tokens_and_fewest_tokens(accuracy, min_tokens):
    """The first end token ends the text, and none comes before the minimum length."""
    output = plain()
    ends = (257, output[5], output[12])
    config = LONG.model_copy(update={"ignore_end_tokens": False, "end_token_ids": ends, "min_tokens": min_tokens})
    expected = alone(target(), Job(PROMPT, config))
    assert not set(expected[:-1]) & set(ends)
    assert len(expected) >= min_tokens
    if not min_tokens:
        assert expected == output[: min(output.index(end) for end in ends[1:]) + 1]
    script = knowing([[*PROMPT, *expected], [*PROMPT, *output]], accuracy, 258)
    [result] = generate(config, script, k=20)
    assert result.token_ids == expected
    if result.finish_reason == "stop":
        assert result.text == text_of(expected[:-1])
    assert result.num_accepted <= len(expected)
