"""The gRPC service: text, and verification of drafts that clients bring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import (
    DrafterUnavailableError,
    DraftRequestError,
    GenerationRequestError,
    TokenizerMismatchError,
)
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.serving.calls import Call, CallInterceptor
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.load import Load, failure_of, read_ahead
from speculant_verifier.requests import session_options
from speculant_verifier.results import StepEvent
from speculant_verifier.service.answers import generate_response, verify_response
from speculant_verifier.service.requests import draft_of, generation_config, prompt_of

SERVICE_NAME = "speculant_graph.rpc.v1.VerifierService"
_END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs
_MOST_FEEDBACK = 64
_READER_TIMEOUT_S = 120.0


class VerifierService:
    """Answers the methods of ``verifier.proto``."""

    def __init__(
        self,
        read_decoder: Callable[[], SpeculativeDecoder],
        defaults: GenerationConfig,
        load: Load,
        idle_timeout_s: float,
    ) -> None:
        """Make a service.

        Args:
            read_decoder: returns what decodes; raises while there is none.
            defaults: settings of requests that leave them open.
            load: how much is taken.
            idle_timeout_s: a client that brings drafts and sends none for so long loses its row.
        """
        self._read_decoder, self._defaults, self._load = read_decoder, defaults, load
        self._idle_timeout_s = idle_timeout_s
        self._reading: set[asyncio.Task[Any]] = set()

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return what a server answers the service's methods with."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Generate": interceptor.answers("Generate", self.generate),
                "Verify": interceptor.stream("Verify", self.verify),
            },
        )

    def drain(self) -> None:
        """End the streams of clients that bring drafts; texts that are under way are finished."""
        for task in self._reading:
            task.cancel()

    async def generate(self, payload: bytes, call: Call) -> None:
        """Continue a prompt, step by step."""
        decoder = self._read_decoder()
        request = parsed(pb.GenerateRequest, payload)
        if request.request_id:
            call.rename(request.request_id)
        speculation = request.speculation
        config = generation_config(request.sampling, speculation, self._defaults, decoder.target.end_token_ids)
        self._load.require_length(config.max_tokens)
        learn = speculation.learn if speculation.HasField("learn") else None
        options = session_options(call.principal, speculation.tenant, speculation.graph, learn)
        with self._load.admitted(config.n) as give_back:
            prompt = await asyncio.to_thread(_token_ids, request, decoder)
            await asyncio.to_thread(decoder.target.grammar, config, prompt)  # so that it is known when it is decoded
            stream = decoder.astream([prompt], config, session=options)
            async with aclosing(read_ahead(cast(AsyncGenerator[StepEvent, None], stream), give_back)) as events:
                async for event in events:
                    if event.result is not None and event.result.finish_reason == "error":
                        raise failure_of(event.result.error, is_client_error=event.result.is_refused)
                    await _written(call, generate_response(event, config.seed))

    async def verify(self, call: Call) -> None:
        """Verify the drafts of a client, one after another."""
        decoder = self._read_decoder()
        payload = await self._next_request(call.context)
        if payload is _END_OF_STREAM:
            return
        request = parsed(pb.VerifyRequest, payload)
        if request.tokenizer_sha256 and request.tokenizer_sha256.hex() != decoder.target.fingerprint.sha256:
            raise TokenizerMismatchError(
                f"the client's tokenizer is not that of '{decoder.target.fingerprint.name}'; use the model's own"
            )
        if request.sampling.num_samples > 1:
            raise GenerationRequestError("num_samples is for Generate; open a stream for every sample")
        speculation = pb.SpeculationOptions(rule=request.rule)
        config = generation_config(request.sampling, speculation, self._defaults, decoder.target.end_token_ids)
        self._load.require_length(config.max_tokens)
        with self._load.admitted(1):
            await asyncio.to_thread(decoder.target.grammar, config, request.prompt_tokens)
            session = decoder.draft_session(list(request.prompt_tokens), config)
            try:
                last_step = -1
                forward_s = 0.0
                while True:
                    if request.step_id <= last_step:
                        raise GenerationRequestError(
                            f"step {request.step_id} comes after step {last_step}; number them upwards"
                        )
                    last_step = request.step_id
                    if request.feedback_width > _MOST_FEEDBACK:
                        raise GenerationRequestError(
                            f"feedback_width is {request.feedback_width}; ask for at most {_MOST_FEEDBACK}"
                        )
                    output = await session.verify(draft_of(request, decoder.draft_config.k), request.feedback_width)
                    if output.finish_reason == "error":
                        sequence = output.sequence
                        raise failure_of(sequence.error, is_client_error=sequence.is_refused)
                    elapsed_s = output.sequence.forward_s - forward_s
                    forward_s = output.sequence.forward_s
                    await _written(call, verify_response(request.step_id, output, elapsed_s))
                    if output.finish_reason is not None:
                        return
                    payload = await self._next_request(call.context)
                    if payload is _END_OF_STREAM:
                        return
                    request = parsed(pb.VerifyRequest, payload)
                    if request.prompt_tokens:
                        raise GenerationRequestError(
                            "prompt_tokens are for the first request of a stream; leave them out"
                        )
            finally:
                session.close()

    async def _next_request(self, context: Any) -> Any:
        if self._load.is_draining:
            raise DrafterUnavailableError("the verifier is shutting down; ask another")
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                return await context.read()
        except TimeoutError:
            raise DrafterUnavailableError(
                f"no draft came for {self._idle_timeout_s:g} s; open another stream when there is one"
            ) from None
        except asyncio.CancelledError:
            if self._load.is_draining:
                raise DrafterUnavailableError("the verifier is shutting down; ask another") from None
            raise
        finally:
            self._reading.discard(task)


def parsed(kind: Any, payload: bytes) -> Any:
    """Return a message of a kind.

    Raises:
        DraftRequestError: the bytes are none.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise DraftRequestError(f"the message is no {kind.DESCRIPTOR.name}; send one") from error


def _token_ids(request: pb.GenerateRequest, decoder: SpeculativeDecoder) -> list[int]:
    """Return what is to be continued; in a thread, as a long text takes its time."""
    prompt = prompt_of(request, decoder.chat_prompt)
    return decoder.target.encode(prompt) if isinstance(prompt, str) else list(prompt)


async def _written(call: Call, response: Any) -> None:
    """Send a message, unless the client does not read for a long time."""
    try:
        async with asyncio.timeout(_READER_TIMEOUT_S):
            await call.context.write(response.SerializeToString())
    except TimeoutError:
        raise DrafterUnavailableError(f"nothing was read for {_READER_TIMEOUT_S:g} s; read as messages come") from None
