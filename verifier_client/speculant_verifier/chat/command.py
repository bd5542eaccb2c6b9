"""``speculant chat``: talk with a model in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import load_settings
from speculant_verifier.command_settings import DecodingSettings


class ChatGenerationConfig(GenerationConfig):
    """How tokens are chosen in a conversation, whose answers may be long."""

    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Most new tokens of an answer."""


class ChatSettings(DecodingSettings):
    """Talk with a model, with the flags of 'generate'.

    A line is a message, typed or from a pipe; /help lists commands. Ctrl-C stops an answer, Ctrl-D ends. Answers go to
    standard output, all else to standard error. The exit status is 1 if a line of a pipe failed.
    """

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
        GenerationError: the model has no chat template.
    """
    settings = load_settings(ChatSettings, "chat", arguments)
    if settings.generation.n > 1:
        raise ConfigError("a conversation has one answer at a time; leave --generation.n out")
    from speculant_verifier.chat.conversation import Conversation, Input
    from speculant_verifier.console import make_console
    from speculant_verifier.generate.command import open_decoder

    log_to_stderr("WARNING")
    notes = make_console(settings.color, stderr=True)
    with open_decoder(settings, settings.color) as decoder:
        source = Input(is_colored=bool(notes.color_system))
        answers = make_console(settings.color)
        return Conversation(decoder, settings.generation, source, answers, notes, settings.system).run()
