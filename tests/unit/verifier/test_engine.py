"""The running batch: requests that join, wait or fail do not affect other requests."""

from __future__ import annotations

import pytest
import torch

from speculant_verifier.engine import Request
from support.engines import CONFIG, alone, finish, make_engine
from support.tiny_models import tiny_gpt_oss


def test_long_prompts_do_not_stall_those_that_run(gpt_oss):
    """While a prompt is read in chunks, every step still emits a token for the running sequence."""
    engine = make_engine(gpt_oss, prefill_chunk=16)
    first = engine.add(Request(0, (1, 2, 3), CONFIG.model_copy(update={"max_tokens": 40})))
    engine.step()
    second = engine.add(Request(1, tuple(index % 250 for index in range(300)), CONFIG))
    steps = 0
    while not second.num_emitted:
        assert any(output.sequence is first for output in engine.step())
        steps += 1
    assert steps >= 300 // 16
    outputs = finish(engine)
    assert outputs[1].sequence.output == alone(gpt_oss, tuple(index % 250 for index in range(300)))


@pytest.mark.parametrize(
    ("prompt", "config", "field"),
    [
        ((), CONFIG, "prompt"),
        (tuple([1] * 600), CONFIG, "prompt"),
        ((1, 258), CONFIG, "prompt"),
        ((1, -1), CONFIG, "prompt"),
        (tuple([1] * 150), CONFIG, "max_tokens"),
    ],
)
def test_a_request_that_can_never_run_fails_alone(gpt_oss, prompt, config, field):
    engine = make_engine(gpt_oss, max_kv_tokens=128)
    engine.add(Request(0, prompt, config))
    engine.add(Request(1, (1, 2, 3), CONFIG))
    ended = finish(engine)
    assert ended[0].finish_reason == "error"
    error = ended[0].sequence.error
    assert (error.kind, error.field) == ("wrong_request", field)
    assert ended[1].sequence.output == alone(gpt_oss, (1, 2, 3))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_end_their_request_alone(temperature):
    """The NaN affects neither the other rows nor the row's next request."""
    gpt_oss = tiny_gpt_oss()
    config = CONFIG.model_copy(update={"temperature": temperature})
    expected = alone(gpt_oss, (1, 2, 3), config)
    with torch.no_grad():
        gpt_oss.model.get_input_embeddings().weight[200] = float("nan")
    engine = make_engine(gpt_oss, max_batch_size=2)
    engine.add(Request(0, (5, 200, 6), config))
    for index in (1, 2, 3):
        engine.add(Request(index, (1, 2, 3), config))
    ended = finish(engine)
    assert ended[0].finish_reason == "error"
    assert ended[0].sequence.error.kind == "internal"
    for index in (1, 2, 3):
        assert ended[index].sequence.output == expected


def test_prompts_are_read_in_the_order_in_which_they_came(gpt_oss):
    """Callers number their requests from 0, so the order must not depend on these numbers."""
    engine = make_engine(gpt_oss, prefill_chunk=16)
    first = engine.add(Request(7, (1,) * 60, CONFIG))
    for _ in range(8):
        engine.add(Request(0, (1,) * 60, CONFIG))
        engine.step()
    assert first.num_emitted
