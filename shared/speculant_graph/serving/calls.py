"""What every call goes through: its client, its id, whether there is capacity, and what becomes of its errors.

Methods take and return bytes. So parsing is ours, and gRPC never answers with the text of an exception of Python's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from loguru import logger

from speculant_graph.errors import DraftLimitError
from speculant_graph.rpc.convert import duration_of
from speculant_graph.rpc.messages import VERSION_KEY
from speculant_graph.rpc.status import STATUS_DETAILS, status_number, to_status
from speculant_graph.serving.access import REQUEST_ID_KEY, AccessPolicy, Principal, request_id_of
from speculant_graph.serving.credentials import certificate_names
from speculant_graph.version import VERSION

_BUSY_S = 0.1
_AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class Call:
    """One running call."""

    principal: Principal
    """The client."""
    context: Any
    """gRPC's view of it."""


Method = Callable[[Any, Call], Awaitable[Any]]
"""Takes a request's bytes, nothing of use for a stream, and returns the answer's bytes or writes the call's context."""


class CallInterceptor:
    """Admits calls."""

    def __init__(self, policy: AccessPolicy, max_concurrent: int) -> None:
        """Make an interceptor.

        Args:
            policy: which clients may call.
            max_concurrent: most calls at a time, streams included.
        """
        self.policy = policy
        self._max_concurrent = max_concurrent
        self._num_running = 0
        self.ended: Counter[tuple[str, str]] = Counter()
        """Calls that ended, by method and the name of their status; those that were not admitted are among them."""

    def unary(self, name: str, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of a method with one request and one answer."""
        return grpc.unary_unary_rpc_method_handler(self._intercepted(name, method))

    def answers(self, name: str, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of a method with one request and a stream of answers."""
        return grpc.unary_stream_rpc_method_handler(self._intercepted(name, method))

    def stream(self, name: str, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of a method with streams both ways."""
        return grpc.stream_stream_rpc_method_handler(self._intercepted(name, method))

    def _intercepted(self, name: str, method: Method) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: Any) -> Any:
            try:
                with self._admitted(name, context) as call:
                    return await method(request, call)
            except Exception as error:
                await _abort(context, error)

        return answer

    @contextmanager
    def _admitted(self, name: str, context: Any) -> Iterator[Call]:
        metadata = context.invocation_metadata()
        request_id = request_id_of(metadata)
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
        self._num_running += 1
        code = grpc.StatusCode.OK
        try:
            with logger.contextualize(request_id=request_id, method=name):
                try:
                    self._require_capacity()
                    principal = self._principal(context, metadata)
                    context.set_trailing_metadata(((REQUEST_ID_KEY, request_id), (VERSION_KEY, VERSION)))
                    yield Call(principal, context)
                except Exception as error:
                    code = log_failure(name, error)
                    raise
                except asyncio.CancelledError:
                    code = grpc.StatusCode.CANCELLED
                    raise
        finally:
            self._num_running -= 1
            self.ended[name, code.name] += 1

    def _require_capacity(self) -> None:
        if self._num_running > self._max_concurrent:
            raise DraftLimitError(
                f"{self._max_concurrent} calls are running; try again in {_BUSY_S} s, or send steps on one stream",
                _BUSY_S,
            )

    def _principal(self, context: Any, metadata: Any) -> Principal:
        if self.policy.is_open:
            return self.policy.authenticate(None, ())
        header = next((value for key, value in metadata or () if key == _AUTHORIZATION), None)
        return self.policy.authenticate(header, certificate_names(context.auth_context()))


async def _abort(context: Any, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    code, message = to_status(error)
    trailing = tuple(context.trailing_metadata() or ())
    if isinstance(error, DraftLimitError):
        details = AnyMessage()
        details.Pack(RetryInfo(retry_delay=duration_of(error.retry_delay_s)))
        status = Status(code=status_number(code), message=message, details=[details])
        trailing = (*trailing, (STATUS_DETAILS, status.SerializeToString()))
    await context.abort(code, message, trailing)
    raise AssertionError("abort raises")


def log_failure(method: str, error: Exception) -> grpc.StatusCode:
    """Log a failed call or step: our own failures as errors and in full, a client's at level DEBUG."""
    code, _ = to_status(error)
    if code is grpc.StatusCode.INTERNAL:
        logger.opt(exception=error).error("{} failed", method)
    else:
        logger.debug("{}: {}: {}", method, code.name, error)
    return code
