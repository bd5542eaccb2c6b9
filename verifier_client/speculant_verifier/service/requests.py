"""Code shared by HTTP and gRPC requests: settings, drafting sessions and capacity."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from loguru import logger
from pydantic import ValidationError

from speculant_graph.config import GenerationConfig, ServiceConfig
from speculant_graph.errors import (
    ApiError,
    GenerationError,
    GenerationRequestError,
    OverloadError,
    ShutdownError,
)
from speculant_graph.serving.access import ALL, Principal
from speculant_graph.types import SessionOptions
from speculant_graph.validation_messages import humanise
from speculant_verifier.conversation.text import Prompts
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.results import StepEvent

_RETRY_S = 1.0
_MAX_SAMPLES = 16
"""Maximum number of samples that one request may ask for, over all its prompts."""


class Load:
    """Counts running and waiting sequences, and refuses requests that exceed the server's capacity."""

    def __init__(self, config: ServiceConfig, max_batch_size: int) -> None:
        """Begin without sequences.

        Args:
            config: settings with the maximum number of waiting sequences.
            max_batch_size: maximum number of sequences decoded together.
        """
        self._most = max_batch_size + config.max_waiting
        self._most_samples = min(_MAX_SAMPLES, self._most)
        self.num_sequences = 0
        """Number of running and waiting sequences."""
        self.num_refused = 0
        """Number of requests refused for lack of capacity."""
        self.is_draining = False
        """Whether new requests are refused because the server is stopping."""

    @contextmanager
    def admitted(self, num_sequences: int) -> Iterator[Callable[[], None]]:
        """Reserve capacity for the sequences of one gRPC or HTTP request.

        Yields:
            A function that releases the capacity of one sequence. The function must be called as soon as a sequence
            ends, because the client may read slowly. The capacity of all other sequences is released at the end of the
            ``with`` block.

        Raises:
            SpeculantError: the request is refused; see :meth:`require_capacity`.
        """
        self.require_capacity(num_sequences)
        self.num_sequences += num_sequences
        num_held = num_sequences

        def give_back() -> None:
            nonlocal num_held
            num_held -= 1
            self.num_sequences -= 1

        try:
            yield give_back
        finally:
            self.num_sequences -= num_held

    def require_capacity(self, num_sequences: int, num_prompts: int = 1) -> None:
        """Raise an error if a request can't be admitted now.

        Args:
            num_sequences: number of sequences, over all prompts.
            num_prompts: number of prompts, for the message.

        Raises:
            GenerationRequestError: the request exceeds the limit for a single request.
            OverloadError: there is no capacity now; the same request may succeed later.
            ShutdownError: the service is shutting down.
        """
        if self.is_draining:
            raise shutting_down()
        most = self._most_samples
        if num_prompts > most:
            raise GenerationRequestError(
                f"{{field}} holds {num_prompts} prompts, but a request may have {most}",
                fix="send fewer",
                field="prompt",
            )
        if num_sequences > most:
            each = f" ({num_sequences // num_prompts} for each of {num_prompts} prompts)" if num_prompts > 1 else ""
            raise GenerationRequestError(
                f"{{field}} asks for {num_sequences} samples{each}, but a request may have {most}",
                fix="ask for fewer",
                field="n",
            )
        if self.num_sequences + num_sequences > self._most:
            self.num_refused += 1
            raise OverloadError(
                "too many requests are waiting or running", _RETRY_S, fix=f"try again in {_RETRY_S:g} s"
            )


def shutting_down() -> ShutdownError:
    """Return the error with which a stopping verifier refuses requests."""
    return ShutdownError("the verifier is shutting down", fix="ask another")


def context_problem(
    num_prompt_tokens: int, max_tokens: int, max_length: int, field: str = "max_tokens"
) -> ApiError | None:
    """Return an error if a request's prompt and new tokens exceed the model's context; None if they fit.

    Args:
        num_prompt_tokens: length of the prompt.
        max_tokens: the client's limit for new tokens. The server's own limit never causes an error, because output
            simply ends at the end of the context.
        max_length: the model's context for prompt and output, in tokens.
        field: name of the limit in the client's request.
    """
    if num_prompt_tokens + max_tokens <= max_length:
        return None
    return ApiError(
        "context_length_exceeded",
        f"{{field}}: the prompt ({num_prompt_tokens}) and the new tokens asked for ({max_tokens}) are more than the "
        f"{max_length} tokens of the model's context",
        fix=f"ask for at most {max_length - num_prompt_tokens}, or shorten the prompt",
        field=field,
    )


async def events_of(
    decoder: SpeculativeDecoder,
    load: Load,
    prompts: Prompts,
    config: GenerationConfig,
    session: SessionOptions | None,
) -> AsyncGenerator[StepEvent, None]:
    """Decode as :func:`paced_events_of` does, but yield only events, never None.

    Raises:
        SpeculantError: there is no capacity, or a sequence failed.
    """
    async with aclosing(paced_events_of(decoder, load, prompts, config, session, None)) as events:
        async for event in events:
            if event is not None:
                yield event


async def paced_events_of(
    decoder: SpeculativeDecoder,
    load: Load,
    prompts: Prompts,
    config: GenerationConfig,
    session: SessionOptions | None,
    pause_s: float | None,
    shared_length: int = 0,
) -> AsyncGenerator[StepEvent | None, None]:
    """Decode for a client that may read slowly; capacity is released as soon as the engine finishes a sequence.

    Events that the client has not read wait in memory, if necessary all events of the output. Closing the iterator
    cancels the request.

    Args:
        decoder: the decoder.
        load: counts the request's sequences.
        prompts: prompts to continue.
        config: settings of all prompts.
        session: options of the prompts' drafting sessions.
        pause_s: number of seconds without an event after which None is yielded; None: never.
        shared_length: number of tokens at the start of every prompt that later prompts will probably share.

    Yields:
        Decoding events, and None when the request is admitted and after every pause.

    Raises:
        SpeculantError: there is no capacity (raised before anything is yielded), or a sequence failed.
    """
    with load.admitted(len(prompts) * config.n) as give_back:
        events = decoder.paced_stream(
            prompts, config, session=session, shared_length=shared_length, pause_s=pause_s, ended=give_back
        )
        async with aclosing(_until_stopped(events, load)) as until_stopped:
            yield None
            async for event in until_stopped:
                if event is not None and event.result is not None and (error := event.result.error) is not None:
                    if isinstance(error, GenerationError):
                        raise error
                    raise GenerationError("the drafter failed") from error  # clients do not know it
                yield event


async def _until_stopped(
    events: AsyncGenerator[StepEvent | None, None], load: Load
) -> AsyncGenerator[StepEvent | None, None]:
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except GenerationError as error:
        if error.kind != "internal":
            raise
        # At the end of the grace period the server has already logged how many sequences it cuts off.
        logger.log("DEBUG" if load.is_draining else "WARNING", "requests ended: {}", error)
        raise ShutdownError("the server stopped decoding", fix="try again later") from error


def changed(defaults: GenerationConfig, wanted: Mapping[str, Any]) -> GenerationConfig:
    """Return the default settings with a request's changes.

    Raises:
        GenerationRequestError: a value is not allowed.
    """
    try:
        checked = GenerationConfig.model_validate(dict(wanted))  # defaults were checked before
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "the settings"
        raise GenerationRequestError(f"{{field}} {humanise(first)}", field=name) from None
    return defaults.model_copy(update={name: getattr(checked, name) for name in checked.model_fields_set})


def session_options(principal: Principal, tenant: str, graph: str, learn: bool | None) -> SessionOptions | None:
    """Return the drafting options that a request adds to the server's settings; None if it adds none.

    Args:
        principal: the client, and its permissions.
        tenant: owner of the text; if empty, the client's only tenant, or the server's setting.
        graph: name of the graph; if empty, the client's only graph or the server's setting.
        learn: whether the text helps the tenant's later requests; None for the server's setting.

    Raises:
        AccessError: the client may not use the tenant or graph, or may use several and names none.
    """
    if ALL not in principal.tenants:
        tenant = principal.require_tenant(tenant)
    graph = principal.require_graph(graph)
    if not tenant and not graph and learn is None:
        return None
    return SessionOptions(tenant or None, graph or None, learn)
