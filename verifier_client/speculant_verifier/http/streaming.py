"""Decoding for one client: an answer in one piece, or events as they come, for as long as the client is there.

The response is an ASGI application of its own instead of a stock streaming response. So the status is decided by the
first event and not before it (a refusal is never a broken stream), and the connection is watched all the time, in
streams and in answers of one piece alike: a client that goes away frees its row within a step. A slow reader holds up
no other, as events wait for it in memory, at most an answer's worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from fastapi.responses import Response
from loguru import logger
from starlette.types import Message, Receive, Scope, Send

from speculant_verifier.http.builders import AnswerBuilder, to_json
from speculant_verifier.http.errors import error_of
from speculant_verifier.results import StepEvent

_JSON_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
]


class GenerationResponse(Response):
    """Sends an answer, unless the client goes away before."""

    def __init__(self, events: AsyncGenerator[StepEvent, None], builder: AnswerBuilder, *, is_stream: bool) -> None:
        """Make a response; nothing is decoded before it is sent.

        Args:
            events: what is decoded, once it is read.
            builder: makes the answer of it.
            is_stream: whether events are sent as they come.
        """
        super().__init__()
        self._events, self._builder, self._is_stream = events, builder, is_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            SpeculantError: there is no answer; nothing has been sent.
        """
        del scope
        answering = asyncio.create_task(self._stream(send) if self._is_stream else self._send_whole(send))
        leaving = asyncio.create_task(_departure(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _send_whole(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                for _ in self._builder.chunks(event):
                    pass
        body = await asyncio.to_thread(lambda: to_json(self._builder.whole()).encode())
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [*_JSON_HEADERS, length]})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send) -> None:
        has_begun = False
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    if not has_begun:
                        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                        has_begun = True
                    for chunk in self._builder.chunks(event):
                        await send(_event(self._builder.frame(chunk)))
        except Exception as error:
            if not has_begun:
                raise
            found = error_of(error)
            if found.status == 500:
                logger.opt(exception=error).error("a stream failed")
            await send(_event(self._builder.failure(found)))
        await send(_event(self._builder.ending, more_body=False))


def _event(text: str, *, more_body: bool = True) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more_body}


async def _departure(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
