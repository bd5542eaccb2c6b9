"""One long-lived stream of steps with a deadline per step, which gRPC's synchronous streams do not have.

gRPC cancels a whole call when its deadline passes. So the stream has none: a thread reads the answers into a
queue, and whoever waits for one gives up on its own. A late answer stays recognisable by its step id.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import grpc

from speculant_graph.errors import DrafterUnavailableError, SpeculantError
from speculant_graph.rpc.status import from_status
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterServiceStub

_JOIN_TIMEOUT_S = 1.0


class StepStream:
    """A running StreamDraft call. Not to be shared between threads."""

    def __init__(self, stub: DrafterServiceStub) -> None:
        """Start the call; whether anybody answers shows with the first answer."""
        self._requests: SimpleQueue[pb.StreamDraftRequest | None] = SimpleQueue()
        self._answers: SimpleQueue[pb.StreamDraftResponse | SpeculantError] = SimpleQueue()
        self._call = stub.StreamDraft(_until_none(self._requests))
        self._reader = threading.Thread(target=self._read, name="speculant-draft-reader", daemon=True)
        self._reader.start()

    def send(self, request: pb.StreamDraftRequest) -> None:
        """Hand over a step; returns at once."""
        self._requests.put(request)

    def receive(self, timeout_s: float) -> pb.StreamDraftResponse | None:
        """Return the next answer, or None if there is none in time; 0 or less looks without waiting.

        Raises:
            SpeculantError: the stream has ended, for the reason in the message; it can't be used any more.
        """
        try:
            answer = self._answers.get(block=timeout_s > 0, timeout=max(timeout_s, 0.0))
        except Empty:
            return None
        if isinstance(answer, SpeculantError):
            raise answer
        return answer

    def close(self) -> None:
        """End the call and its threads."""
        self._requests.put(None)
        self._call.cancel()
        self._reader.join(_JOIN_TIMEOUT_S)

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._answers.put(answer)
            self._answers.put(DrafterUnavailableError("the drafter ended the stream"))
        except grpc.RpcError as error:
            # A call's RpcError is the call itself.
            self._answers.put(from_status(error.code(), error.details()))
        finally:
            self._requests.put(None)


def _until_none(requests: SimpleQueue[pb.StreamDraftRequest | None]) -> Iterator[pb.StreamDraftRequest]:
    return iter(requests.get, None)
