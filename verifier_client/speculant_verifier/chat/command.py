"""``speculant chat``: talk with a model in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import load_settings
from speculant_verifier.command_settings import DecodingSettings

if TYPE_CHECKING:
    from speculant_verifier.chat.backend import Backend


class ChatGenerationConfig(GenerationConfig):
    """How tokens are chosen in a conversation, whose answers may be long."""

    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Most new tokens of an answer."""


class ChatSettings(DecodingSettings):
    """Talk with a model: here, with the flags of 'generate', or with a server by --url.

    A line is a message, typed or from a pipe; /help lists commands. Ctrl-C stops an answer, Ctrl-D ends. Answers go to
    standard output, all else to standard error. The exit status is 1 if a line of a pipe failed.
    """

    url: str = ""
    """Talk with a server instead: where its API begins, such as http://127.0.0.1:8000/v1. --model names one of several
    models."""
    api_key: SecretStr | None = None
    """Key for that server. Better in the environment (SPECULANT_API_KEY), where other users don't see it."""
    system: str = ""
    """A system message before the conversation."""
    color: Literal["auto", "never", "always"] = "auto"
    """Colour accepted drafts, and dim what is not the answer: 'auto' does on a terminal, unless NO_COLOR is set."""
    generation: ChatGenerationConfig = ChatGenerationConfig()
    """How tokens are chosen."""


def run(arguments: Sequence[str]) -> int:
    """Talk until there are no more messages; return 1 if a line of a pipe failed.

    Raises:
        ConfigError: settings are wrong, or the model can't be loaded.
        GenerationError: the model has no chat template, or the server does not answer.
    """
    settings = load_settings(ChatSettings, "chat", arguments)
    if settings.generation.n > 1:
        raise ConfigError("a conversation has one answer at a time; leave --generation.n out")
    if settings.url and (settings.graph_path is not None or settings.client.model_fields_set):
        raise ConfigError("with --url the server has its own drafter; leave --graph-path and --client settings out")
    from speculant_verifier.chat.conversation import COMMANDS, Conversation
    from speculant_verifier.chat.input import Input
    from speculant_verifier.chat.renderer import Renderer
    from speculant_verifier.console import make_console

    log_to_stderr("WARNING")
    notes = make_console(settings.color, stderr=True)
    backend = _remote(settings) if settings.url else _local(settings)
    try:
        source = Input(tuple(COMMANDS), is_colored=bool(notes.color_system))
        return Conversation(backend, source, Renderer(make_console(settings.color), notes), settings.system).run()
    finally:
        backend.close()


def _local(settings: ChatSettings) -> Backend:
    from speculant_verifier.generate.command import open_decoder

    decoder = open_decoder(settings, settings.color)
    from speculant_verifier.chat.local import LocalBackend

    try:
        return LocalBackend(decoder, settings.generation)
    except BaseException:
        decoder.close()
        raise


def _remote(settings: ChatSettings) -> Backend:
    from speculant_verifier.chat.remote import RemoteBackend

    model = settings.verifier.model_name if "model_name" in settings.verifier.model_fields_set else ""
    api_key = settings.api_key.get_secret_value() if settings.api_key else ""
    return RemoteBackend(settings.url, settings.generation, api_key, model)
