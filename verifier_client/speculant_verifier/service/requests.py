"""What HTTP and gRPC requests have in common: settings, a session with the drafter, and the capacity that they take."""

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
"""Of one request, all prompts together."""


class Load:
    """Counts the sequences that are decoded or wait, and refuses more than its capacity."""

    def __init__(self, config: ServiceConfig, max_batch_size: int) -> None:
        """Begin with nothing under way.

        Args:
            config: how many may wait.
            max_batch_size: sequences decoded together.
        """
        self._most = max_batch_size + config.max_waiting
        self._most_samples = min(_MAX_SAMPLES, self._most)
        self.num_sequences = 0
        """Under way."""
        self.num_refused = 0
        """Requests refused for want of capacity."""
        self.is_draining = False
        """Whether no more are taken."""

    @contextmanager
    def admitted(self, num_sequences: int) -> Iterator[Callable[[], None]]:
        """Reserve capacity for the sequences of one request, of either API.

        Yields:
            What gives the capacity of one sequence back, as soon as that has ended: its client may be slow to read. The
            rest is given back at the end.

        Raises:
            SpeculantError: as ``require_capacity`` does.
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
        """Refuse a request that could not be admitted now.

        Args:
            num_sequences: of all prompts together.
            num_prompts: how many prompts they share, for the message.

        Raises:
            GenerationRequestError: they are more than any request may have.
            OverloadError: there is no capacity; the same request may be taken a little later.
            ShutdownError: the service is about to end.
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
                "too many requests wait or are being answered", _RETRY_S, fix=f"try again in {_RETRY_S:g} s"
            )


def shutting_down() -> ShutdownError:
    """Return why a verifier that is about to end takes no more requests."""
    return ShutdownError("the verifier is shutting down", fix="ask another")


def context_problem(
    num_prompt_tokens: int, max_tokens: int, max_length: int, field: str = "max_tokens"
) -> ApiError | None:
    """Return why the context can't hold as many new tokens as a client asked for; None if it can.

    Args:
        num_prompt_tokens: length of the prompt.
        max_tokens: what the client asked for; the limit of the server's settings ends with the context instead.
        max_length: the model's context, in tokens, prompt and answer together.
        field: where the client asked for them.
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
    """Decode as :func:`paced_events_of` does, and yield events alone.

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
    """Decode for a client that may be slow; capacity is given back as soon as the engine is done with a sequence.

    What is not read yet waits in memory, at most an answer. Leaving the iterator ends the generation.

    Args:
        decoder: decodes.
        load: counts how much it has to do.
        prompts: what is continued.
        config: settings of all prompts.
        session: options of their sessions with the drafter.
        pause_s: time after which a reader is told that there is still nothing; None: it is not told.
        shared_length: tokens at the beginning of every prompt that later ones will probably begin with, too.

    Yields:
        Events; None as soon as the request is admitted, and after every pause.

    Raises:
        SpeculantError: there is no capacity, which is raised before anything is yielded, or a sequence failed.
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
                    raise GenerationError("the drafter failed") from error  # clients know nothing of it
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
        # At the end of the grace period the server has logged already how many it cuts off.
        logger.log("DEBUG" if load.is_draining else "WARNING", "requests ended: {}", error)
        raise ShutdownError("the server stopped decoding", fix="try again later") from error


def changed(defaults: GenerationConfig, wanted: Mapping[str, Any]) -> GenerationConfig:
    """Return settings with some of them changed.

    Raises:
        GenerationRequestError: a value is not allowed.
    """
    try:
        checked = GenerationConfig.model_validate(dict(wanted))  # what is not changed was checked before
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "the settings"
        raise GenerationRequestError(f"{{field}} {humanise(first)}", field=name) from None
    return defaults.model_copy(update={name: getattr(checked, name) for name in checked.model_fields_set})


def session_options(principal: Principal, tenant: str, graph: str, learn: bool | None) -> SessionOptions | None:
    """Return the options of a request's session with the drafter besides the server's settings; None for nothing.

    Args:
        principal: the caller's name.
        tenant: whose text it is; empty leaves it to what the client may, or to the server's settings.
        graph: name of the graph; empty leaves it to what the client may, or to the server's settings.
        learn: whether later requests of the tenant profit; None leaves it to the server's settings.

    Raises:
        AccessError: tenant or graph is not the client's, or it has several and names none.
    """
    if ALL not in principal.tenants:
        tenant = principal.require_tenant(tenant)
    graph = principal.require_graph(graph)
    if not tenant and not graph and learn is None:
        return None
    return SessionOptions(tenant or None, graph or None, learn)
