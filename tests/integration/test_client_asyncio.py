"""The asyncio client with a real sidecar: many tasks, several event loops, cancelled steps."""

from __future__ import annotations

import asyncio
import signal

import pytest

from speculant_graph.client import AsyncDrafterClient, LocalDrafter
from speculant_graph.config import ClientConfig
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Draft, Fingerprint, SequenceStep
from support.clients import GREEDY, PATIENT, known_tokens, make_steps, tokens
from support.processes import Sidecar


def make_async_client(address: str, tokenizer: Fingerprint | None = None, **settings: object) -> AsyncDrafterClient:
    config = ClientConfig.model_validate({"address": address, **PATIENT, **settings})
    return AsyncDrafterClient(config, tokenizer=tokenizer, draft=GREEDY)


def test_tasks_of_several_loops_share_one_client(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    client = make_async_client(shared_sidecar.address, small_graph.metadata.tokenizer)

    async def decode(step: SequenceStep) -> list[tuple[SequenceStep, Draft]]:
        await client.open(step.session_id)
        text, found = list(step.token_ids), []
        for _ in range(6):
            now = SequenceStep(step.session_id, list(text), 4)
            [draft] = await client.draft([now])
            found.append((now, draft))
            text += [*draft.token_ids[:2], step.token_ids[0]]
        await client.finish(step.session_id)
        return found

    async def decode_all() -> list[list[tuple[SequenceStep, Draft]]]:
        return await asyncio.gather(*(decode(step) for step in make_steps(small_graph, 8)))

    local = LocalDrafter(small_graph, GREEDY)
    for _ in range(2):
        for found in asyncio.run(decode_all()):
            for step, draft in found:
                assert tokens([draft]) == tokens(local.draft([step]))
    assert client.statistics.steps == 96
    assert client.statistics.failed_steps == client.statistics.reopened_sessions == 0
    asyncio.run(client.close())
    assert not any(asyncio.run(client.draft(make_steps(small_graph))))


def test_a_late_or_cancelled_step_costs_itself_only(shared_sidecar: Sidecar, small_graph: NgramGraph) -> None:
    token = known_tokens(small_graph)[0]

    async def run() -> None:
        async with make_async_client(shared_sidecar.address, deadline_ms=500.0) as client:
            text = [token]
            assert (await client.draft([SequenceStep(1, text, 4)]))[0]
            for is_cancelled in (False, True, True):
                text.append(token)
                shared_sidecar.signal(signal.SIGSTOP)
                step = asyncio.ensure_future(client.draft([SequenceStep(1, text, 4)]))
                if is_cancelled:
                    await asyncio.sleep(0)
                    step.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await step
                else:
                    assert not (await step)[0]
                shared_sidecar.signal(signal.SIGCONT)
                text.append(token)
                assert (await client.draft([SequenceStep(1, text, 4)]))[0]
            assert client.statistics.late_answers == client.statistics.failed_steps == 3  # the stream has survived

    asyncio.run(run())
