"""``speculant generate``: continue prompts, with drafts from a graph file or from a sidecar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import printable
from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.generate_input import PromptLine
    from speculant_verifier.results import GenerationResult, StepEvent
    from speculant_verifier.text import Prompt


class GenerateSettings(CommandSettings):
    """Continue prompts with a model, sooner with drafts. The text goes to standard output as it is made.

    Statistics go to standard error. The exit status is 1 if a prompt could not be continued.
    """

    prompt: CliPositionalArg[list[str]] = []  # noqa: RUF012 - every instance gets its own copy
    """Text to continue; several are decoded together. Without any and without --prompts, all of standard input."""
    prompts: Path | None = None
    """File with more prompts, one on each line; '-' is standard input. In a file named .jsonl a line is a text, or an
    object with 'prompt' (text or token ids) or 'messages' (a conversation), and 'generation', its own settings."""
    chat: bool = False
    """Put every prompt through the model's chat template, as a message of the user."""
    system: str = ""
    """With --chat: a system message before it."""
    graph_path: Path | None = None
    """Draft in this process from this graph file."""
    json_output: bool = False
    """Print one JSON object a line for every result, with text, token ids, statistics and any error, and with
    log-probabilities where they are asked for, instead of the text."""
    verifier: VerifierConfig = VerifierConfig()
    """The model."""
    draft: DraftConfig = DraftConfig()
    """How much to draft."""
    generation: GenerationConfig = GenerationConfig()
    """How tokens are chosen."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecar, if there is one."""


def run(arguments: Sequence[str]) -> int:
    """Generate; print text as it comes and a line of statistics on standard error."""
    settings = load_settings(GenerateSettings, "generate", arguments)
    if settings.system and not settings.chat:
        raise ConfigError("--system is for conversations; add --chat")
    from speculant_verifier.generate_input import prompts_for, read_prompts

    lines = read_prompts(settings.prompt, settings.prompts, settings.generation)
    from speculant_verifier.console import quiet_transformers
    from speculant_verifier.decoder import SpeculativeDecoder

    quiet_transformers()
    log_to_stderr("INFO")
    with SpeculativeDecoder(
        settings.graph_path, settings.verifier, settings.draft, client_config=settings.client
    ) as decoder:
        if decoder.drafter.state == "off" and settings.draft.k:
            sys.stderr.write(
                f"plain decoding: strategy {settings.draft.strategy} needs --graph-path or --address; "
                "--strategy tree drafts from the sequence itself, too\n"
            )
        prompts = prompts_for(decoder, lines, is_chat=settings.chat, system=settings.system)
        return _generate(decoder, prompts, lines, as_json=settings.json_output)


def _generate(decoder: SpeculativeDecoder, prompts: list[Prompt], lines: Sequence[PromptLine], *, as_json: bool) -> int:
    from rich.console import Console

    from speculant_verifier.generate_output import InOrder, TextPrinter, json_line, statistics_line

    num_samples = [line.config.n for line in lines]
    printer = TextPrinter(Console(highlight=False, soft_wrap=True), num_samples)
    results: list[GenerationResult] = []

    def show(events: Iterator[StepEvent]) -> None:
        for event in events:
            if not as_json:
                printer.print(event)
            if event.result is None:
                continue
            results.append(event.result)
            if as_json:
                sys.stdout.write(json_line(event, event.result, decoder.target.decode) + "\n")
                sys.stdout.flush()
            if event.result.error:
                place = lines[event.prompt_index].place
                message = f"{place}: {event.result.error}" if place else event.result.error
                sys.stderr.write(f"speculant: generate: {printable(message)}\n")

    order = InOrder(num_samples)
    started_s = time.perf_counter()
    try:
        for event in decoder.stream(prompts, [line.config for line in lines]):
            show(order.push(event))
    finally:
        show(order.rest())  # what was decoded before an interruption is not lost
    if not as_json and any(not result.error for result in results):
        sys.stderr.write(statistics_line(results, time.perf_counter() - started_s) + "\n")
    return 1 if any(result.error for result in results) else 0
