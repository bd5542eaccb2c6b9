"""``speculant chat``: talk with a model in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr

from speculant_graph.cli.terminal import printable
from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.config_learning import DraftModelConfig, RecordConfig
from speculant_graph.errors import ConfigError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_verifier.talk.learning import Learner
    from speculant_verifier.talk.partner import Partner


class ChatGenerationConfig(GenerationConfig):
    """How tokens are chosen in a conversation, whose answers have room."""

    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Most new tokens of an answer."""


class ChatSettings(CommandSettings):
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
    graph_path: Path | None = None
    """Draft in this process from this graph file."""
    json_output: bool = False
    """Print one JSON object a line for every answer, with text, reasoning, statistics and any error."""
    color: Literal["auto", "never", "always"] = "auto"
    """Dim what is not the answer: 'auto' does on a terminal, unless NO_COLOR is set."""
    verifier: VerifierConfig = VerifierConfig()
    """The model."""
    draft: DraftConfig = DraftConfig()
    """How much to draft."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """A small language model that drafts, too; its name is enough."""
    record: RecordConfig = RecordConfig()
    """Which conversations are recorded, and where."""
    generation: ChatGenerationConfig = ChatGenerationConfig()
    """How tokens are chosen."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecar, if there is one."""


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
    from speculant_verifier.console import make_console
    from speculant_verifier.talk.conversation import COMMANDS, Conversation
    from speculant_verifier.talk.reading import make_reader
    from speculant_verifier.talk.screen import JsonScreen, TextScreen

    log_to_stderr("WARNING")
    notes = make_console(settings.color, stderr=True)
    partner, learner = (_remote(settings), None) if settings.url else _local(settings)
    try:
        reader = make_reader(tuple(COMMANDS), is_colored=bool(notes.color_system))
        make_screen = JsonScreen if settings.json_output else TextScreen
        screen = make_screen(make_console(settings.color), notes)
        return Conversation(partner, reader, screen, settings.system, learner).run()
    finally:
        partner.close()


def _local(settings: ChatSettings) -> tuple[Partner, Learner]:
    from speculant_verifier.console import quiet_transformers, waiting_for
    from speculant_verifier.sources import require_sources

    with waiting_for(f"loading {printable(settings.verifier.model_name)}", settings.color):
        require_sources(settings.verifier, settings.graph_path, settings.client)
        from speculant_verifier.decoder import SpeculativeDecoder
        from speculant_verifier.talk.learning import Learner
        from speculant_verifier.talk.local import LocalPartner

        quiet_transformers()
        decoder = SpeculativeDecoder(
            settings.graph_path,
            settings.verifier,
            settings.draft,
            client_config=settings.client,
            draft_model=settings.draft_model,
            record=settings.record,
        )
        try:
            partner = LocalPartner(decoder, settings.generation)
            return partner, Learner(decoder, settings.draft_model, settings.record.folder)
        except BaseException:
            decoder.close()
            raise


def _remote(settings: ChatSettings) -> Partner:
    from speculant_verifier.talk.remote import RemotePartner

    model = settings.verifier.model_name if "model_name" in settings.verifier.model_fields_set else ""
    api_key = settings.api_key.get_secret_value() if settings.api_key else ""
    return RemotePartner(settings.url, settings.generation, api_key, model)
