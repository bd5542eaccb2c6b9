"""Decoding for one client: an answer in one piece, or events as they come, for as long as the client is there.

The response is an ASGI application of its own instead of a stock streaming response. So the status is decided by the
first event and not before it (a refusal is never a broken stream), and the connection is watched all the time, in
streams and in answers of one piece alike: a client that goes away frees its place within a step. A slow reader holds up
nobody, as events wait for it in memory, at most an answer's worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import cast

from fastapi.responses import Response
from loguru import logger
from starlette.types import Message, Receive, Scope, Send

from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftLimitError,
    GenerationError,
    GenerationRequestError,
    SpeculantError,
)
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.http.errors import ApiError, internal, of_call, of_result, too_busy, unavailable
from speculant_verifier.http.preparing import Prepared
from speculant_verifier.http.shapes import Shape
from speculant_verifier.load import Load, read_ahead
from speculant_verifier.results import StepEvent

_READER_PATIENCE_S = 120.0
"""Longest time without a byte being read."""
_JSON_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
]


class Decoding:
    """Lets requests in and decodes them."""

    def __init__(self, decoder: SpeculativeDecoder, load: Load) -> None:
        """Take the decoder and what counts how much it has to do."""
        self._decoder, self._load = decoder, load

    def require_room(self, num_choices: int) -> None:
        """Refuse what would have to wait behind too many.

        Raises:
            ApiError: the queue is full, or could never be empty enough.
        """
        with _refusals():
            self._load.require_room(num_choices)

    async def events(self, prepared: Prepared) -> AsyncGenerator[StepEvent, None]:
        """Yield what happens; leaving it ends the generation.

        Raises:
            ApiError: there is no room, or a choice failed.
        """
        with ExitStack() as held:
            with _refusals():
                give_back = held.enter_context(self._load.admitted(prepared.job.num_choices))
            stream = self._decoder.astream(prepared.job.prompts, prepared.config, session=prepared.session)
            try:
                async with aclosing(read_ahead(cast(AsyncGenerator[StepEvent, None], stream), give_back)) as events:
                    async for event in events:
                        if event.result is not None and event.result.finish_reason == "error":
                            if event.result.is_clients_fault:  # its message may hold what a client wrote
                                logger.debug("a request was refused: {}", event.result.error)
                            else:
                                logger.warning("a request failed: {}", event.result.error)
                            raise of_result(event.result, self._decoder.target.name, prepared.job.model)
                        yield event
            except GenerationError as error:
                # At the end of the grace period the server has said already how many it cuts off.
                logger.log("DEBUG" if self._load.is_draining else "WARNING", "requests ended: {}", error)
                raise of_call(error) from error
            except SpeculantError as error:
                logger.error("decoding failed: {}", error)
                raise internal() from error


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except DraftLimitError as error:
        raise too_busy("too many requests wait already") from error
    except DrafterUnavailableError as error:
        raise unavailable("the server is shutting down") from error
    except GenerationRequestError as error:
        raise ApiError(400, str(error), param="n", code="too_many_samples") from error


class GenerationResponse(Response):
    """Sends an answer, unless the client goes away before."""

    def __init__(self, decoding: Decoding, prepared: Prepared, shape: Shape, *, is_stream: bool) -> None:
        """Make a response; nothing is decoded before it is sent.

        Args:
            decoding: decodes.
            prepared: what.
            shape: how it looks.
            is_stream: whether events are sent as they come.
        """
        super().__init__()
        self._decoding, self._prepared, self._shape = decoding, prepared, shape
        self._is_stream = is_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            ApiError: there is no answer; nothing has been sent.
        """
        del scope
        answering = asyncio.create_task(self._stream(send) if self._is_stream else self._send_whole(send))
        leaving = asyncio.create_task(_departure(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                with suppress(_ReaderSleepsError):  # the server closes what has no end
                    await answering
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _send_whole(self, send: Send) -> None:
        async with aclosing(self._decoding.events(self._prepared)) as events:
            async for event in events:
                self._shape.add(event)
        body = await asyncio.to_thread(lambda: self._shape.whole().to_json().encode())
        length = (b"content-length", str(len(body)).encode())
        await _sent(send, {"type": "http.response.start", "status": 200, "headers": [*_JSON_HEADERS, length]})
        await _sent(send, {"type": "http.response.body", "body": body})

    async def _stream(self, send: Send) -> None:
        has_begun = False
        try:
            async with aclosing(self._decoding.events(self._prepared)) as events:
                async for event in events:
                    if not has_begun:
                        await _sent(send, {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                        has_begun = True
                    for chunk in self._shape.chunks(event):
                        await _sent(send, _event(self._shape.frame(chunk)))
        except _ReaderSleepsError:
            raise
        except Exception as error:
            if not has_begun:
                raise
            if not isinstance(error, ApiError):
                logger.opt(exception=error).error("a stream failed")
            failure = self._shape.failure(error if isinstance(error, ApiError) else internal())
            await _sent(send, _event(failure))
        await _sent(send, _event(self._shape.ending, more_body=False))


class _ReaderSleepsError(Exception):
    """The client has not read for a long time."""


async def _sent(send: Send, message: Message) -> None:
    """Send, unless nothing is read for too long.

    Raises:
        _ReaderSleepsError: the connection is to be closed.
    """
    try:
        async with asyncio.timeout(_READER_PATIENCE_S):
            await send(message)
    except TimeoutError:
        raise _ReaderSleepsError from None


def _event(text: str, *, more_body: bool = True) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more_body}


async def _departure(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
