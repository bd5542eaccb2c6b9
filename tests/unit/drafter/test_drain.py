"""The end of the service: every stream ends by itself, whatever it is doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from speculant_drafter.service import DrafterService
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import DrafterUnavailableError
from speculant_graph.rpc.v1 import drafter_pb2 as pb


async def _requests(number: int) -> AsyncIterator[pb.StreamDraftRequest]:
    for step_id in range(number):
        yield pb.StreamDraftRequest(step_id=step_id)
    await asyncio.Event().wait()


def test_a_stream_whose_answer_is_being_sent_ends_before_its_next_request() -> None:
    async def run() -> None:
        service = DrafterService(ServerConfig(), DraftConfig())
        stream = service.StreamDraft(_requests(9), None)
        assert (await anext(stream)).step_id == 0
        service.drain()
        with pytest.raises(DrafterUnavailableError, match="shutting down"):
            await anext(stream)

    asyncio.run(run())


def test_a_stream_that_waits_for_a_request_ends_at_once() -> None:
    async def run() -> None:
        service = DrafterService(ServerConfig(), DraftConfig())
        stream = service.StreamDraft(_requests(1), None)
        assert (await anext(stream)).step_id == 0
        waiting = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        service.drain()
        with pytest.raises(DrafterUnavailableError, match="shutting down"):
            await asyncio.wait_for(waiting, 5.0)

    asyncio.run(run())
