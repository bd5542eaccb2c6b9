"""Sequences whose drafts their caller brings: exact, beside others, and idle while no draft comes."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import GenerationError
from speculant_graph.types import EMPTY_DRAFT, Draft, DrafterStatistics
from speculant_verifier.engine import Engine, Request
from speculant_verifier.engine.runner import Runner
from support.drafters import chain
from support.tiny_models import tiny_gpt_oss, tiny_model

NUM_TOKENS = 40
CONFIG = GenerationConfig(max_tokens=NUM_TOKENS, ignore_end_tokens=True)
SAMPLED = CONFIG.model_copy(update={"temperature": 1.1, "seed": 5, "repetition_penalty": 1.2})
PROMPT = tuple(range(20, 45))


@pytest.fixture(scope="module")
def target():
    return tiny_gpt_oss(window=16)


def make_runner(target, rows=3, k=8):
    engine = Engine(target, NullDrafter(), VerifierConfig(max_batch_size=rows), DraftConfig(k=k))
    return Runner(engine), engine


def plain(target, prompt=PROMPT, config=CONFIG):
    runner, _ = make_runner(target)
    return tuple(token for output in runner.stream([Request(0, prompt, config)]) for token in output.token_ids)


def half_right(text, known, generator):
    """A tree of two nodes at every depth, one of them what comes, until it goes wrong."""
    token_ids, parents, right = [], [], -1
    for token in text[known : known + 4]:
        parent, right = right + 1, len(token_ids) + generator.randrange(2)
        wrong = (token + 1) % 250
        for node in (len(token_ids), len(token_ids) + 1):
            token_ids.append(token if node == right and generator.random() < 0.8 else wrong)
            wrong = (wrong + 1) % 250
            parents.append(parent)
    return Draft(tuple(token_ids), tuple(parents))


async def play(session, text, generator, feedback_width=0):
    emitted = ()
    while True:
        draft = half_right(text, len(emitted), generator)
        output = await session.verify(draft, feedback_width)
        path = [draft.token_ids[node] for node in output.path]
        assert output.token_ids[: len(path)] == tuple(path)
        assert output.num_accepted == len(path)
        emitted += output.token_ids
        if feedback_width and output.feedback is not None:
            assert output.feedback.shape == (1 + len(draft), feedback_width)
            if not path:  # greedy: the model's own token is the most probable one after the root
                assert output.feedback[0, 0] == output.token_ids[0]
        if output.finish_reason is not None:
            return emitted, output.finish_reason


@pytest.mark.parametrize("config", [CONFIG, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding_alone_and_beside_others(target, config):
    expected = plain(target, PROMPT, config)
    other = plain(target, (7, 8, 9), config)
    runner, engine = make_runner(target)

    async def everything():
        async def session(seed):
            one = runner.session(Request(0, PROMPT, config))
            try:
                return await play(one, expected, random.Random(seed))
            finally:
                one.close()

        async def usual():
            outputs = runner.astream([Request(0, (7, 8, 9), config)])
            return tuple([token async for output in outputs for token in output.token_ids])

        return await asyncio.gather(session(1), usual(), session(2), session(3))

    first, usual, *others = asyncio.run(everything())
    assert usual == other
    for outcome in (first, *others):
        assert outcome == (expected, "length")
    assert engine.num_running == engine.num_waiting == 0
    assert engine.totals.num_passes < 3 * NUM_TOKENS


def test_what_the_target_preferred_comes_back(target):
    expected = plain(target)
    runner, _ = make_runner(target)

    async def everything():
        return await play(runner.session(Request(0, PROMPT, CONFIG)), expected, random.Random(3), feedback_width=4)

    assert asyncio.run(everything()) == (expected, "length")


def test_nodes_keep_their_numbers_where_a_draft_is_cut_at_the_end_of_the_text():
    target = tiny_model("llama")
    config = CONFIG.model_copy(update={"max_tokens": 3})
    expected = plain(target, PROMPT, config)
    # Node 1 is deeper than what remains; nodes 0 and 2 are siblings, of which the latter is right.
    draft = Draft(((expected[0] + 1) % 250, 3, 4, 5, expected[0], expected[1]), (0, 1, 2, 3, 0, 5))
    runner, _ = make_runner(target)

    async def everything():
        return await runner.session(Request(0, PROMPT, config)).verify(draft, feedback_width=2)

    output = asyncio.run(everything())
    assert output.token_ids == expected
    assert output.path == (4, 5)
    assert output.feedback is None


@pytest.mark.parametrize(("draft", "message"), [
    (Draft((1,) * 9, tuple(range(9))), "has 9 nodes, but at most 8"),
    (Draft((1, 2), (0, 2)), "no tree"), (Draft((999,), (0,)), "token ids 0..257"), (Draft((1, 2), (0,)), "no tree"),
])  # fmt: skip
def test_a_draft_that_can_not_be_verified_is_refused_and_another_may_follow(target, draft, message):
    runner, _ = make_runner(target)

    async def everything():
        session = runner.session(Request(0, PROMPT, CONFIG))
        with pytest.raises(GenerationError, match=message):
            await session.verify(draft)
        outcome = await play(session, plain(target), random.Random(0))
        with pytest.raises(GenerationError, match="has ended"):
            await session.verify(EMPTY_DRAFT)
        return outcome

    assert asyncio.run(everything())[0] == plain(target)


def test_who_waits_for_a_draft_takes_no_time_of_anybody(target):
    runner, engine = make_runner(target, rows=1)

    async def everything():
        session = runner.session(Request(0, PROMPT, CONFIG))
        first = await session.verify(EMPTY_DRAFT)
        blocked = asyncio.create_task(anext(runner.astream([Request(0, (1, 2), CONFIG)])))
        await asyncio.sleep(0.2)
        steps, before = engine.totals.num_passes, time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.3, "nobody turns in circles"
        assert engine.totals.num_passes == steps
        assert not blocked.done(), "the only row is taken"
        session.close()
        await blocked
        return first

    assert len(asyncio.run(everything()).token_ids) == 1


def test_a_request_that_can_never_run_says_so_at_its_first_step(target):
    runner, _ = make_runner(target)

    async def everything():
        return await runner.session(Request(0, (), CONFIG)).verify(EMPTY_DRAFT)

    output = asyncio.run(everything())
    assert output.finish_reason == "error"
    assert "the prompt is empty" in output.sequence.error


def test_closing_the_engine_ends_sessions(target):
    runner, _ = make_runner(target)

    async def everything():
        session = runner.session(Request(0, PROMPT, CONFIG))
        await session.verify(EMPTY_DRAFT)
        await asyncio.to_thread(runner.close)
        with pytest.raises(GenerationError, match=r"closed|ended"):
            await session.verify(EMPTY_DRAFT)

    asyncio.run(everything())


class SteppingDrafter:
    """Drafts nothing, and holds every step up until it is let go on."""

    state = "ok"

    def __init__(self):
        self.statistics = DrafterStatistics()
        self.num_begun = 0
        self._allowed = threading.Semaphore(0)

    def open(self, session_id): ...

    def draft(self, steps):
        self.num_begun += 1
        assert self._allowed.acquire(timeout=60)
        return [EMPTY_DRAFT for _ in steps]

    def finish(self, session_id): ...

    def close(self): ...

    def go_on(self, steps=1):
        for _ in range(steps):
            self._allowed.release()


@pytest.mark.parametrize("fault", ["cancelled", "refused by the engine"])
def test_what_becomes_of_one_call_is_no_business_of_the_others(target, fault, monkeypatch):
    drafter = SteppingDrafter()
    engine = Engine(target, drafter, VerifierConfig(max_batch_size=3), DraftConfig(k=4))
    runner = Runner(engine)

    async def read(request):
        return [token async for output in runner.astream([request]) for token in output.token_ids]

    async def play():
        first = asyncio.create_task(read(Request(0, PROMPT, CONFIG)))
        while not drafter.num_begun:  # a step is being done, so what comes now waits for its end
            await asyncio.sleep(0.001)
        if fault == "cancelled":
            session = runner.session(Request(0, PROMPT, CONFIG))
            task = asyncio.create_task(session.verify(chain([1, 2])))
            await asyncio.sleep(0)
            task.cancel()
            session.close()
        else:
            add = engine.add

            def fail_once(request):
                monkeypatch.setattr(engine, "add", add)
                raise RuntimeError("no memory for its settings")

            monkeypatch.setattr(engine, "add", fail_once)
            task = asyncio.create_task(read(Request(0, PROMPT, CONFIG)))
            await asyncio.sleep(0)
        last = asyncio.create_task(read(Request(0, PROMPT, CONFIG)))
        await asyncio.sleep(0)
        drafter.go_on(4 * NUM_TOKENS)
        texts = await asyncio.gather(first, last)
        with pytest.raises(asyncio.CancelledError if fault == "cancelled" else RuntimeError):
            await task
        return texts

    texts = asyncio.run(asyncio.wait_for(play(), 60))
    assert [tuple(text) for text in texts] == [plain(target)] * 2
    runner.close()
