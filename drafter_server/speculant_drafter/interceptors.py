"""The one place where an exception of the sidecar becomes a gRPC status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from loguru import logger

from speculant_graph.errors import DraftRequestError
from speculant_graph.rpc.status import to_status


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # generic in the stubs only
    """Parses requests and maps errors, so that a client never sees text of Python's.

    Parsing is done here because gRPC answers bytes that it can't parse with the text of the exception.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the method's handler; see the base class."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming != handler.response_streaming:
            return handler
        method = str(handler_call_details.method)
        parse = handler.request_deserializer

        async def answer(payload: bytes, context: Any) -> Any:
            try:
                return await handler.unary_unary(_parsed(parse, payload), context)
            except Exception as error:
                await _abort(context, method, error)

        async def answer_stream(payloads: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            requests = (_parsed(parse, payload) async for payload in payloads)
            try:
                async for response in handler.stream_stream(requests, context):
                    yield response
            except Exception as error:
                await _abort(context, method, error)

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                answer_stream,
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=handler.response_serializer)


def _parsed(parse: Callable[[bytes], Any], payload: bytes) -> Any:
    try:
        return parse(payload)
    except DecodeError:
        raise DraftRequestError("the message can't be parsed; send one of this service's protocol") from None


async def _abort(context: Any, method: str, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    code, message = to_status(error)
    log_failure(method, code, error)
    await context.abort(code, message)
    raise AssertionError("abort raises")


def log_failure(method: str, code: grpc.StatusCode, error: Exception) -> None:
    """Log a failed call: our own failures loudly and in full, a client's only for those who look."""
    if code is grpc.StatusCode.INTERNAL:
        logger.opt(exception=error).error("{} failed", method)
    else:
        logger.debug("{}: {}: {}", method, code.name, error)
