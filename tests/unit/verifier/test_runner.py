"""One engine with many callers: threads, tasks, readers that leave, and errors that end all requests."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import GenerationError, TokenizerMismatchError
from speculant_graph.types import EMPTY_DRAFT
from speculant_verifier.engine import Engine, Request
from speculant_verifier.engine.runner import Runner
from support.drafters import ScriptedDrafter

CONFIG = GenerationConfig(max_tokens=10, ignore_end_tokens=True)
PROMPTS = [(1, 2, 3), (4,), tuple(range(30)), (9, 9), (8, 7, 6, 5), (2, 4, 6)]


@pytest.fixture(scope="module")
def expected(llama):
    return [output(Runner(make_engine(llama)).stream([Request(0, prompt, CONFIG)])) for prompt in PROMPTS]


def as_it_is(output):
    return output


def make_engine(target, drafter=None, rows=4):
    return Engine(target, drafter or NullDrafter(), VerifierConfig(max_batch_size=rows), DraftConfig(k=4))


def output(outputs):
    return tuple(token for output in outputs for token in output.token_ids)


def test_threads_share_a_batch_and_get_their_own_tokens(llama, expected):
    runner = Runner(make_engine(llama))
    outputs = {}

    def call(number):
        outputs[number] = output(runner.stream([Request(0, PROMPTS[number], CONFIG)]))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [outputs[number] for number in range(len(PROMPTS))] == expected


def test_tasks_of_an_event_loop_and_a_thread_share_a_batch(llama, expected):
    engine = make_engine(llama)
    runner = Runner(engine)

    async def call(number):
        outputs = runner.astream([Request(0, PROMPTS[number], CONFIG)], as_it_is)
        return tuple([token async for each in outputs for token in each.token_ids])

    async def everything():
        in_thread = asyncio.to_thread(lambda: output(runner.stream([Request(0, PROMPTS[0], CONFIG)])))
        return await asyncio.gather(in_thread, *(call(number) for number in range(1, len(PROMPTS))))

    assert asyncio.run(everything()) == expected
    assert not engine.has_work
    assert asyncio.run(call(2)) == expected[2]  # in a new event loop, after the thread has ended


def test_an_error_of_the_engine_reaches_everybody_who_waits_and_the_next_call_works(llama, expected):
    class Refusing(ScriptedDrafter):
        refuses = True

        def open(self, session_id):
            super().open(session_id)
            if self.refuses:
                raise TokenizerMismatchError("another tokenizer")

    drafter = Refusing(lambda _: EMPTY_DRAFT)
    engine = make_engine(llama, drafter)
    runner = Runner(engine)

    async def everything():
        calls = [anext(runner.astream([Request(0, prompt, CONFIG)], as_it_is)) for prompt in PROMPTS]
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(everything())
    assert {type(error) for error in errors} == {TokenizerMismatchError}
    assert not engine.has_work
    drafter.refuses = False
    assert output(runner.stream([Request(0, PROMPTS[0], CONFIG)])) == expected[0]


@pytest.mark.parametrize("error", [TokenizerMismatchError("another tokenizer"), RuntimeError("no room")])
def test_a_session_that_is_refused_is_counted_step_by_step(llama, expected, error):
    class Refusing(ScriptedDrafter):
        refuses = False

        def open(self, session_id):
            super().open(session_id)
            if self.refuses:
                raise error

    drafter = Refusing(lambda _: EMPTY_DRAFT)
    engine = make_engine(llama, drafter)
    runner = Runner(engine)
    for drafter.refuses in (False, True):
        assert output(runner.stream([Request(0, PROMPTS[0], CONFIG)])) == expected[0]
        with_room = CONFIG.max_tokens - 1  # the last step has no room for a draft
        assert engine.totals.num_steps_without_drafter == (with_room if drafter.refuses else 0)


def test_closing_does_not_wait_for_the_text_of_whoever_works(llama):
    """The decoding caller keeps retaking the lock, so close() must not depend on winning it."""
    runner = Runner(make_engine(llama))
    began = threading.Event()
    tokens = []

    def read():
        for output in runner.stream([Request(0, (3, 3), CONFIG.model_copy(update={"max_tokens": 500}))]):
            tokens.extend(output.token_ids)
            began.set()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        began.wait(60)
        runner.close()
        with pytest.raises(GenerationError):
            reading.result(60)
    assert len(tokens) < 500
    with pytest.raises(GenerationError):
        list(runner.stream([Request(0, (3, 3), CONFIG)]))


def test_an_interrupt_is_for_the_one_who_worked_and_the_next_call_works(llama, expected, monkeypatch):
    engine = make_engine(llama)
    runner = Runner(engine)
    other = runner.stream([Request(0, (4,), CONFIG)])
    next(other)
    forward = llama.forward

    def interrupted(*rest, **more):
        monkeypatch.setattr(llama, "forward", forward)
        raise KeyboardInterrupt

    monkeypatch.setattr(llama, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(runner.stream([Request(0, (3, 3), CONFIG)]))
    with pytest.raises(GenerationError):
        list(other)
    assert not engine.has_work
    assert output(runner.stream([Request(0, PROMPTS[3], CONFIG)])) == expected[3]
