"""One engine, many callers: threads, tasks, readers that leave, and errors that end everything."""

from __future__ import annotations

import asyncio
import threading

import pytest

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import TokenizerMismatchError
from speculant_graph.types import EMPTY_DRAFT
from speculant_verifier.engine import Engine, Request
from speculant_verifier.engine.runner import Runner
from support.drafters import ScriptedDrafter
from support.tiny_models import tiny_model

CONFIG = GenerationConfig(max_tokens=10, ignore_end_tokens=True)
PROMPTS = [(1, 2, 3), (4,), tuple(range(30)), (9, 9), (8, 7, 6, 5), (2, 4, 6)]


@pytest.fixture(scope="module")
def target():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def expected(target):
    return [output(Runner(make_engine(target)).stream([Request(0, prompt, CONFIG)])) for prompt in PROMPTS]


def make_engine(target, drafter=None, rows=4):
    return Engine(target, drafter or NullDrafter(), VerifierConfig(max_batch_size=rows), DraftConfig(k=4))


def output(emissions):
    return tuple(token for emission in emissions for token in emission.token_ids)


def test_threads_share_a_batch_and_get_their_own_tokens(target, expected):
    runner = Runner(make_engine(target))
    outputs = {}

    def call(number):
        outputs[number] = output(runner.stream([Request(0, PROMPTS[number], CONFIG)]))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [outputs[number] for number in range(len(PROMPTS))] == expected


def test_tasks_of_an_event_loop_and_a_thread_share_a_batch(target, expected):
    engine = make_engine(target)
    runner = Runner(engine)

    async def call(number):
        return tuple(
            [token async for e in runner.astream([Request(0, PROMPTS[number], CONFIG)]) for token in e.token_ids]
        )

    async def everything():
        in_thread = asyncio.to_thread(lambda: output(runner.stream([Request(0, PROMPTS[0], CONFIG)])))
        return await asyncio.gather(in_thread, *(call(number) for number in range(1, len(PROMPTS))))

    assert asyncio.run(everything()) == expected
    assert not engine.has_work
    assert asyncio.run(call(2)) == expected[2]  # in a loop of its own, after the thread has ended


def test_a_cancelled_task_ends_its_sequence_and_no_other(target, expected):
    drafter = ScriptedDrafter(lambda _: EMPTY_DRAFT)
    engine = make_engine(target, drafter)
    runner = Runner(engine)
    endless = CONFIG.model_copy(update={"max_tokens": 400})

    async def everything():
        async def read():
            async for _ in runner.astream([Request(0, (5, 5), endless)]):
                began.set()

        began = asyncio.Event()
        task = asyncio.create_task(read())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return tuple([token async for e in runner.astream([Request(0, PROMPTS[1], CONFIG)]) for token in e.token_ids])

    assert asyncio.run(everything()) == expected[1]
    assert not engine.has_work
    assert not drafter.open_sessions


def test_a_reader_who_leaves_frees_the_row(target, expected):
    engine = make_engine(target, rows=1)
    runner = Runner(engine)
    reader = runner.stream([Request(0, (3, 3), CONFIG), Request(1, (4, 4), CONFIG)])
    next(reader)
    reader.close()
    assert not engine.has_work
    assert output(runner.stream([Request(0, PROMPTS[3], CONFIG)])) == expected[3]


def test_an_error_of_the_engine_reaches_everybody_who_waits_and_the_next_call_works(target, expected):
    class Refusing(ScriptedDrafter):
        refuses = True

        def open(self, session_id):
            super().open(session_id)
            if self.refuses:
                raise TokenizerMismatchError("another tokenizer")

    drafter = Refusing(lambda _: EMPTY_DRAFT)
    engine = make_engine(target, drafter)
    runner = Runner(engine)

    async def everything():
        calls = [anext(runner.astream([Request(0, prompt, CONFIG)])) for prompt in PROMPTS]
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(everything())
    assert {type(error) for error in errors} == {TokenizerMismatchError}
    assert not engine.has_work
    drafter.refuses = False
    assert output(runner.stream([Request(0, PROMPTS[0], CONFIG)])) == expected[0]


def test_closing_ends_those_who_wait(target):
    runner = Runner(make_engine(target))
    reader = runner.stream([Request(0, (3, 3), CONFIG)])
    next(reader)
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(reader)
